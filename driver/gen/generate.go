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

// templates holds the templates of the generated files, with the functions that they call.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"upper": strings.ToUpper,
	"lines": func(text string) []string { return slices.Collect(strings.SplitSeq(text, "\n")) },
	"last":  func(all []term) int { return len(all) - 1 }, // the last index
	"numbered": func(all []term) []term {
		return slices.DeleteFunc(slices.Clone(all), func(t term) bool { return !t.Numbered })
	},
}).ParseFS(templateFiles, "*.tmpl"))

// headerPath is the path of the C header. Only its enumerations are generated.
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
	Number   int    // value of the constant in package driver
	Logical  string // Name of the equivalent reduction for booleans (stored as bytes), or ""
	Numbered bool   // result of driver.Operation.HasNumber
	Tuned    bool   // result of driver.Operation.HasTuningRules
}

// terms is the data of the templates.
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

		generated := text.Bytes()
		if strings.HasSuffix(path, ".go") {
			if generated, err = format.Source(generated); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}

		contents[path] = generated
	}

	// The template of the header has only the enumerations. The rest of the header is kept.
	enumerations := contents[headerPath]
	contents[headerPath], err = replaceEnumerations(filepath.Join(root, headerPath), enumerations)
	return contents, err
}

// loadTerms returns all terms. It takes names and comments from the sources of package driver,
// which are in folder, and the rest from the package.
func loadTerms(folder string) (*terms, error) {
	var data terms
	reductions, err := constantsBefore(filepath.Join(folder, "reduction.go"), "ReduceOps")
	if err != nil {
		return nil, err
	}

	for i, c := range reductions { // the constants have the values 0, 1, 2 and so on
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
	if err != nil {
		return nil, err
	}

	for i, c := range operations {
		o := driver.Operation(i)
		data.Operations = append(data.Operations, term{
			Go: c.name, Name: toSnakeCase(c.name), Note: o.Note(), Number: i, Numbered: o.HasNumber(),
			Tuned: o.HasTuningRules(),
		})
	}

	return &data, nil
}

// wordBoundary matches the last letter of a word and the first letter of the next one.
var wordBoundary = regexp.MustCompile(`([a-z])([A-Z])`)

// toSnakeCase returns a name such as reduce_scatter for ReduceScatter.
func toSnakeCase(name string) string {
	return strings.ToLower(wordBoundary.ReplaceAllString(name, "${1}_$2"))
}

type constant struct{ name, doc string }

// constantsBefore returns the constants in the declaration of the constant end that precede end.
// path is that of the file with the declaration.
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
			spec := s.(*ast.ValueSpec) // the only kind of spec in a constant declaration
			name := spec.Names[0].Name
			if name == end {
				return all, nil
			}

			all = append(all, constant{name: name, doc: strings.TrimSpace(spec.Doc.Text())})
		}
	}

	return nil, fmt.Errorf("%s has no constant %s", path, end)
}

// replaceEnumerations returns the contents of the file at path, with new enumerations. In both
// texts, each enumeration follows a comment and ends with "};". An enumeration of the file is
// replaced by the one with the same comment.
func replaceEnumerations(path string, enumerations []byte) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	for _, block := range bytes.SplitAfter(enumerations, []byte("};\n")) {
		comment, _, hasEnumeration := bytes.Cut(block, []byte("enum {"))
		if !hasEnumeration { // after the last one
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
