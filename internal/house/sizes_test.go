package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

const (
	maxFileLines   = 500
	maxMethodFiles = 5
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
