package main

import (
	"bytes"
	"embed"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"symmem/driver"
)

//go:embed *.tmpl
var templateFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"upper": strings.ToUpper,
	"lines": func(text string) []string { return slices.Collect(strings.SplitSeq(text, "\n")) },
	"last":  func(all []term) int { return len(all) - 1 },
	"numbered": func(all []term) []term {
		return slices.DeleteFunc(slices.Clone(all), func(t term) bool { return !t.Numbered })
	},
}).ParseFS(templateFiles, "*.tmpl"))

const headerPath = "cmd/libsymmem/symmem.h"

// templateOfFile maps each generated file, relative to the module's root, to its template.
var templateOfFile = map[string]string{
	"terms.go":                      "root.tmpl",
	"internal/tuning/operations.go": "tuning.tmpl",
	"python/src/symmem/_c/terms.py": "python.tmpl",
	headerPath:                      "header.tmpl",
}

// term is a reduction or an operation that the generated files list.
type term struct {
	Go       string // name of the constant in package driver
	Name     string // name in Python and, in capitals, in C
	Alias    string // name in PyTorch, or "" if it is the same
	Note     string // restriction on the use of the term, or ""
	Doc      string // doc comment of a reduction in package driver
	Number   int
	Logical  string // Name of the equivalent reduction for booleans (stored as bytes), or ""
	Numbered bool   // see driver.Operation.HasNumber
	Tuned    bool   // see driver.Operation.HasTuningRules
}

type terms struct{ Reductions, Operations []term }

// generate returns the contents of all generated files by path relative to root, the module's root.
func generate(root string) (map[string][]byte, error) {
	data, err := loadTerms(filepath.Join(root, "driver"))
	if err != nil {
		return nil, err
	}
	contents := map[string][]byte{}
	for path, templateName := range templateOfFile {
		var text bytes.Buffer
		if err := templates.ExecuteTemplate(&text, templateName, data); err != nil {
			return nil, err
		}
		contents[path] = text.Bytes()
		if strings.HasSuffix(path, ".go") {
			if contents[path], err = format.Source(text.Bytes()); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	enumerations := contents[headerPath]
	contents[headerPath], err = replaceEnumerations(filepath.Join(root, headerPath), enumerations)
	return contents, err
}

func loadTerms(folder string) (*terms, error) {
	var data terms
	reductions, err := constantsBefore(filepath.Join(folder, "reduction.go"), "ReduceOps")
	if err != nil {
		return nil, err
	}
	for i, c := range reductions {
		op := driver.ReduceOp(i)
		t := term{
			Go: c.name, Doc: c.doc, Name: op.String(), Alias: op.Alias(), Note: op.Note(), Number: i,
		}
		if logical, ok := op.Logical().Number(); ok {
			t.Logical = driver.ReduceOp(logical).String()
		}
		data.Reductions = append(data.Reductions, t)
	}
	operations, err := constantsBefore(filepath.Join(folder, "operation.go"), "Operations")
	for i, c := range operations {
		o := driver.Operation(i)
		data.Operations = append(data.Operations, term{
			Go: c.name, Name: toSnakeCase(c.name), Note: o.Note(), Number: i, Numbered: o.HasNumber(),
			Tuned: o.HasTuningRules(),
		})
	}
	return &data, err
}

func toSnakeCase(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z]|All)([A-Z])`).ReplaceAllString(name, "${1}_$2"))
}

type constant struct{ name, doc string }

// constantsBefore returns the constants that precede the constant end in its declaration.
func constantsBefore(path, end string) ([]constant, error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		var all []constant
		for _, s := range block.Specs {
			spec := s.(*ast.ValueSpec)
			if spec.Names[0].Name == end {
				return all, nil
			}
			all = append(all, constant{spec.Names[0].Name, strings.TrimSpace(spec.Doc.Text())})
		}
	}
	return nil, fmt.Errorf("%s has no constant %s", path, end)
}

// replaceEnumerations returns the contents of the file at path, with each enumeration replaced by
// the one with the same comment in enumerations. An enumeration ends with "};".
func replaceEnumerations(path string, enumerations []byte) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, block := range bytes.SplitAfter(enumerations, []byte("};\n")) {
		comment, _, ok := bytes.Cut(block, []byte("enum {"))
		if !ok {
			continue
		}
		before, rest, hasComment := bytes.Cut(text, comment)
		_, after, hasEnd := bytes.Cut(rest, []byte("};\n"))
		if !hasComment || !hasEnd {
			return nil, fmt.Errorf("%s has no enumeration after %q", path, comment)
		}
		text = bytes.Join([][]byte{before, block, after}, nil)
	}
	return text, nil
}
