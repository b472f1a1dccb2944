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

// scattered are types whose methods still lie in more files.
var scattered = []string{
	"driver/drivertest.bench", "driver/drivertest.rank", "driver/host.Device",
	"driver/host.communicator", "driver/nccl.Device", "driver/nccl.communicator",
	"driver/nccl.stream", "internal/alloc.Core", "internal/control/shm.Group",
	"internal/cuda.Driver", "internal/soak.round", "internal/torch.Library", "internal/torch.rank",
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

func scatteredMethods(files []*file) []finding {
	type of struct{ folder, receiver string }
	holders := map[of][]string{}
	first := map[of]finding{}
	for _, f := range files {
		if f.test() {
			continue
		}
		for _, d := range f.syntax.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok || function.Recv == nil {
				continue
			}
			key := of{f.folder(), receiverName(function.Recv.List[0].Type)}
			if !slices.Contains(holders[key], f.path) {
				holders[key] = append(holders[key], f.path)
				first[key] = f.find(function.Pos(), "")
			}
		}
	}
	var all []finding
	for key, paths := range holders {
		if len(paths) > maxMethodFiles && !slices.Contains(scattered, key.folder+"."+key.receiver) {
			slices.Sort(paths)
			found := first[key]
			found.what = fmt.Sprintf("methods of %s lie in %d files: %s", key.receiver, len(paths),
				strings.Join(paths, ", "))
			all = append(all, found)
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
