package house

import (
	"fmt"
	"strings"
)

const (
	maxFileLines   = 500
	maxMethods     = 30
	maxMethodFiles = 3
)

func lines(count int, line string) string { return strings.Repeat(line+"\n", count) }

var sizeRules = []rule{
	{
		name:   "files have at most 500 lines",
		reason: "a file has one subject, but longer files have several",
		check: eachFile(func(f *file) []finding {
			if n := strings.Count(f.source, "\n"); n > maxFileLines {
				return []finding{f.find(f.syntax.Package, "%d lines", n)}
			}

			return nil
		}),
		bad:  []map[string]string{{"a.go": "package a\n" + lines(maxFileLines, "//")}},
		good: []map[string]string{{"a.go": "package a\n" + lines(maxFileLines-1, "//")}},
	},
	{
		name:   "a type has at most 30 methods, in at most three files",
		reason: "a larger type has several responsibilities, each of which deserves a type",
		check:  largeTypes,
		bad: []map[string]string{
			methodFiles("A", maxMethodFiles+1, 1), methodFiles("a", maxMethodFiles+1, 1),
			methodFiles("*A[T]", maxMethodFiles+1, 1), methodFiles("A", 1, maxMethods+1),
			withFile(methodFiles("*A", 1, maxMethods), "b.go",
				"package a\n\ntype b struct{ *A }\n\nfunc (x b) view() {}\n"),
		},
		good: []map[string]string{
			methodFiles("A", maxMethodFiles, maxMethods/maxMethodFiles),
			withFile(methodFiles("A", maxMethodFiles, 1), "a_test.go",
				"package a\n\nfunc (x A) test() {}\n"),
			withFile(methodFiles("A", maxMethodFiles, 1), "b/b.go", "package b\n\nfunc (x A) f() {}\n"),
			withFile(methodFiles("*A", 1, maxMethods), "b.go",
				"package a\n\ntype b struct{ a *A }\n\nfunc (x b) part() {}\n"),
			withFile(methodFiles("A", 1, maxMethods), "b.go",
				"package a\n\ntype B struct{ A }\n\nfunc (x B) more() {}\n"),
		},
	},
}

// methodFiles returns a module in which each file declares the given number of methods on a
// receiver.
func methodFiles(receiver string, files, methods int) map[string]string {
	sources := map[string]string{}
	for i := range files {
		text := "package a\n"
		for m := range methods {
			text += fmt.Sprintf("\nfunc (x %s) f%dOf%d() {}\n", receiver, m, i)
		}

		sources[fmt.Sprintf("f%d.go", i)] = text
	}

	return sources
}

func withFile(sources map[string]string, name, text string) map[string]string {
	sources[name] = text
	return sources
}
