package house

import (
	"fmt"
	"go/ast"
	"go/format"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxFileLines     = 500
	maxFunctionLines = 80
	maxColumns       = 100
	maxMethodFiles   = 5
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
		name:  "the methods of a type lie in at most five files",
		why:   "who looks for what a type does opens few files; a type with more has several jobs",
		check: scatteredMethods,
		bad: []map[string]string{
			methodFiles("A", maxMethodFiles+1), methodFiles("a", maxMethodFiles+1),
			methodFiles("*A[T]", maxMethodFiles+1),
		},
		good: []map[string]string{
			methodFiles("A", maxMethodFiles),
			with(methodFiles("A", maxMethodFiles), "a_test.go", "package a\n\nfunc (x A) test() {}\n"),
			with(methodFiles("A", maxMethodFiles), "b/b.go", "package b\n\nfunc (x A) f() {}\n"),
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

// methodFiles is a module of which each file has a method of one receiver.
func methodFiles(receiver string, count int) map[string]string {
	sources := map[string]string{}
	for i := range count {
		text := fmt.Sprintf("package a\n\nfunc (x %s) f%d() {}\n", receiver, i)
		sources[fmt.Sprintf("f%d.go", i)] = text
	}
	return sources
}

// with adds a file to a module.
func with(sources map[string]string, name, text string) map[string]string {
	sources[name] = text
	return sources
}

// holder is a type and the files that hold its methods.
type holder struct {
	name  string // the folder, a point, the type
	files []string
	last  finding // at the first method of the last file
}

// holders finds all types that have methods, by name.
func holders(files []*file) map[string]*holder {
	all := map[string]*holder{}
	for _, f := range files {
		if f.test() {
			continue
		}
		for _, d := range f.syntax.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok || function.Recv == nil {
				continue
			}
			name := f.folder() + "." + receiverName(function.Recv.List[0].Type)
			h := all[name]
			if h == nil {
				h = &holder{name: name}
				all[name] = h
			}
			if !slices.Contains(h.files, f.path) {
				h.files, h.last = append(h.files, f.path), f.find(function.Pos(), "")
			}
		}
	}
	return all
}

func scatteredMethods(files []*file) []finding {
	var all []finding
	for name, h := range holders(files) {
		if len(h.files) > maxMethodFiles {
			slices.Sort(h.files)
			h.last.what = fmt.Sprintf("methods of %s lie in %d files: %s", name, len(h.files),
				strings.Join(h.files, ", "))
			all = append(all, h.last)
		}
	}
	return all
}

// receiverName is the name of a receiver's type, without its star and its parameters.
func receiverName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiverName(t.X)
	case *ast.IndexExpr:
		return receiverName(t.X)
	case *ast.IndexListExpr:
		return receiverName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
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
