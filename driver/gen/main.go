// Command gen reads the reductions and operations of package driver. It generates their names and
// numbers in the root package, the C header, the Python package and the tuning tables. Run it with
// "go generate" in the directory of package driver.
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

func main() {
	if err := write(".."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	all, err := generate(root)
	if err != nil {
		return err
	}

	for path, contents := range all {
		if err := os.WriteFile(filepath.Join(root, path), contents, 0o644); err != nil {
			return err
		}
	}

	return nil
}

//go:embed *.tmpl
var templateFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"upper":        strings.ToUpper,
	"splitLines":   splitLines,
	"lastIndex":    lastIndex,
	"onlyNumbered": onlyNumbered,
}).ParseFS(templateFiles, "*.tmpl"))

func splitLines(text string) []string { return strings.Split(text, "\n") }

func lastIndex(all []term) int { return len(all) - 1 }

func onlyNumbered(all []term) []term {
	isUnnumbered := func(t term) bool { return !t.Numbered }
	return slices.DeleteFunc(slices.Clone(all), isUnnumbered)
}

// headerPath is the path of a C header, in which only the enumerations are generated.
const headerPath = "cmd/libsymmem/symmem.h"

// The paths are relative to the module's root.
var templateOfFile = map[string]string{
	"terms.go":                      "root.tmpl",
	"internal/tuning/operations.go": "tuning.tmpl",
	"python/src/symmem/_c/terms.py": "python.tmpl",
	headerPath:                      "header.tmpl",
}

// term is a reduction or an operation.
type term struct {
	Go       string // name of the constant in package driver
	Doc      string // comment of the constant; only for reductions
	Number   int    // value of the constant
	Name     string // name in Python and, in capitals, in C
	Alias    string // name in PyTorch if it differs
	Note     string // comment in the C header, if any
	Logical  string // reduction to use for booleans, if any, such as "max" for "sum"
	Numbered bool   // the operation has a number in C and Python
	Tuned    bool   // a tuning table may have rules for the operation
}

// terms is the input of the templates.
type terms struct{ Reductions, Operations []term }

// generate returns the contents of all generated files by path.
func generate(root string) (map[string][]byte, error) {
	all, err := loadTerms(filepath.Join(root, "driver"))
	if err != nil {
		return nil, err
	}

	contents := map[string][]byte{}
	for path, templateName := range templateOfFile {
		var text bytes.Buffer
		if err := templates.ExecuteTemplate(&text, templateName, all); err != nil {
			return nil, err
		}

		content, err := completeFile(root, path, text.Bytes())
		if err != nil {
			return nil, err
		}

		contents[path] = content
	}

	return contents, nil
}

// completeFile turns the output of a template into the contents of the file at path.
func completeFile(root, path string, text []byte) ([]byte, error) {
	switch {
	case path == headerPath:
		return replaceEnumerations(filepath.Join(root, path), text)
	case strings.HasSuffix(path, ".go"):
		source, err := format.Source(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}

		return source, nil
	default:
		return text, nil
	}
}

func loadTerms(driverPath string) (*terms, error) {
	reductions, err := constantsBefore(filepath.Join(driverPath, "reduction.go"), "ReduceOps")
	if err != nil {
		return nil, err
	}

	operations, err := constantsBefore(filepath.Join(driverPath, "operation.go"), "Operations")
	if err != nil {
		return nil, err
	}

	var all terms
	for number, c := range reductions {
		all.Reductions = append(all.Reductions, reductionTerm(c, number))
	}

	for number, c := range operations {
		all.Operations = append(all.Operations, operationTerm(c, number))
	}

	return &all, nil
}

func reductionTerm(c constant, number int) term {
	op := driver.ReduceOp(number)
	t := term{
		Go:     c.name,
		Doc:    c.doc,
		Number: number,
		Name:   op.String(),
		Alias:  op.Alias(),
		Note:   op.Note(),
	}
	logical, hasLogical := op.Logical().Number()
	if hasLogical {
		t.Logical = driver.ReduceOp(logical).String()
	}

	return t
}

func operationTerm(c constant, number int) term {
	o := driver.Operation(number)
	return term{
		Go:       c.name,
		Number:   number,
		Name:     toSnakeCase(c.name),
		Note:     o.Note(),
		Numbered: o.HasNumber(),
		Tuned:    o.HasTuningRules(),
	}
}

var wordBoundary = regexp.MustCompile(`([a-z])([A-Z])`)

// toSnakeCase returns reduce_scatter for ReduceScatter.
func toSnakeCase(name string) string {
	separated := wordBoundary.ReplaceAllString(name, "${1}_$2")
	return strings.ToLower(separated)
}

type constant struct{ name, doc string }

// constantsBefore returns the constants before a constant in its const block. Their values are 0, 1
// and so on.
func constantsBefore(path, endName string) ([]constant, error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}

	for _, d := range f.Decls {
		block, isBlock := d.(*ast.GenDecl)
		if !isBlock || block.Tok != token.CONST {
			continue
		}

		var all []constant
		for _, s := range block.Specs {
			spec := s.(*ast.ValueSpec)
			name := spec.Names[0].Name
			if name == endName {
				return all, nil
			}

			doc := strings.TrimSpace(spec.Doc.Text())
			all = append(all, constant{name: name, doc: doc})
		}
	}

	return nil, fmt.Errorf("%s has no constant %s", path, endName)
}

// replaceEnumerations returns the C header at path with new enumerations. Each has the same comment
// as the enumeration that it replaces:
//
//	/* Reductions. The list is generated by driver/gen. */
//	enum {
//		SYMMEM_SUM = 0
//	};
func replaceEnumerations(path string, enumerations []byte) ([]byte, error) {
	header, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	blockEnd := []byte("};\n")
	for _, newBlock := range bytes.SplitAfter(enumerations, blockEnd) {
		comment, _, isBlock := bytes.Cut(newBlock, []byte("enum {"))
		if !isBlock { // the text after the last block
			continue
		}

		before, rest, hasComment := bytes.Cut(header, comment)
		_, after, hasEnd := bytes.Cut(rest, blockEnd)
		if !hasComment || !hasEnd {
			return nil, fmt.Errorf("%s has no enumeration after %q", path, comment)
		}

		header = bytes.Join([][]byte{before, newBlock, after}, nil)
	}

	return header, nil
}
