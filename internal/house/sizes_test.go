package house

import (
	"go/ast"
	"go/format"
	"strings"
	"unicode/utf8"
)

const (
	maxFileLines     = 500
	maxFunctionLines = 80
	maxColumns       = 100
)

func lines(count int, line string) string { return strings.Repeat(line+"\n", count) }

var sizeRules = []rule{
	{
		name: "files have at most 500 lines",
		why:  "a file holds one noun; one that needs more holds several",
		check: each(func(f *file) []finding {
			if n := strings.Count(f.source, "\n"); n > maxFileLines {
				return []finding{f.find(f.syntax.Package, "%d lines", n)}
			}
			return nil
		}),
		bad:  []map[string]string{{"a.go": "package a\n" + lines(maxFileLines, "//")}},
		good: []map[string]string{{"a.go": "package a\n" + lines(maxFileLines-1, "//")}},
	},
	{
		name:  "functions have at most 80 lines",
		why:   "what does not fit on a screen is not read as one thing",
		check: each(longFunctions),
		bad:   []map[string]string{{"a.go": "package a\n\nfunc f() {\n" + lines(81, "\t_ = 1") + "}\n"}},
		good:  []map[string]string{{"a.go": "package a\n\nfunc f() {\n" + lines(78, "\t_ = 1") + "}\n"}},
	},
	{
		name:  "lines have at most 100 columns",
		why:   "two files fit side by side",
		check: each(longLines),
		bad:   []map[string]string{{"a.go": "package a\n\n// " + strings.Repeat("x", 98) + "\n"}},
		good: []map[string]string{
			{"a.go": "package a\n\n// " + strings.Repeat("ü", 97) + "\n"},
			{"a.go": "package a\n\n//go:generate " + strings.Repeat("x", 98) + "\n"},
		},
	},
	{
		name: "files are formatted by gofmt",
		why:  "nobody has to think about it",
		check: each(func(f *file) []finding {
			formatted, err := format.Source([]byte(f.source))
			if err != nil || string(formatted) != f.source {
				return []finding{f.find(f.syntax.Package, "gofmt would change it")}
			}
			return nil
		}),
		bad:  []map[string]string{{"a.go": "package a\n\nvar a  = 1\n"}},
		good: []map[string]string{{"a.go": "package a\n\nvar a = 1\n"}},
	},
}

func longFunctions(f *file) []finding {
	var all []finding
	for _, d := range f.syntax.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Body == nil || f.generated() {
			continue
		}
		n := f.set.Position(function.End()).Line - f.set.Position(function.Pos()).Line + 1
		if n > maxFunctionLines {
			all = append(all, f.find(function.Pos(), "%s has %d lines", function.Name.Name, n))
		}
	}
	return all
}

// longLines counts a tab as one column, as golangci-lint does.
func longLines(f *file) []finding {
	if f.generated() {
		return nil
	}
	var all []finding
	for i, line := range strings.Split(f.source, "\n") {
		// Directives cannot be broken.
		if n := utf8.RuneCountInString(line); n > maxColumns && !strings.HasPrefix(line, "//go:") {
			all = append(all, finding{f.path, i + 1, "the line is too long"})
		}
	}
	return all
}
