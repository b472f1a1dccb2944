// Package house contains only tests. They check the project's rules for imports, file sizes, names
// and documentation. Each rule has examples of compliant and violating code, which test the rule.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "symmem"

// file is a Go file of the module.
type file struct {
	path   string // slash-separated, relative to the module's root
	source string
	set    *token.FileSet // resolves positions in syntax
	syntax *ast.File
}

// folder returns the file's folder, which is "" for the root of the module.
func (f *file) folder() string {
	if dir := path.Dir(f.path); dir != "." {
		return dir
	}

	return ""
}

func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f *file) isGenerated() bool { return ast.IsGenerated(f.syntax) }

// find returns a finding at the given position.
func (f *file) find(at token.Pos, format string, args ...any) finding {
	return finding{f.path, f.set.Position(at).Line, fmt.Sprintf(format, args...)}
}

// finding is a violation of a rule.
type finding struct {
	path string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text) }

// rule is a rule for the Go files of the module.
type rule struct {
	name   string // a sentence that states the rule
	reason string
	check  func(files []*file) []finding
	// Examples of violating and compliant code: each maps paths to source texts.
	bad, good []map[string]string
}

// eachFile converts a check of one file to a rule.check.
func eachFile(check func(*file) []finding) func([]*file) []finding {
	return func(files []*file) []finding {
		var all []finding
		for _, f := range files {
			all = append(all, check(f)...)
		}

		return all
	}
}

var rules = slices.Concat(
	importRules, documentRules, sizeRules, wordRules, lockRules, seamRules, testRules, clockRules,
)

func TestRules(t *testing.T) {
	files := loadFiles(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(files) {
				t.Errorf("%v\n\treason: %s", f, r.reason)
			}
		})
	}
}

func TestRulesFindViolations(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if len(r.bad) == 0 || len(r.good) == 0 {
				t.Error("the rule has no examples")
			}

			for i, bad := range r.bad {
				if len(r.check(parseFiles(t, bad))) == 0 {
					t.Errorf("the check finds no violation in bad example %d", i)
				}
			}

			for i, good := range r.good {
				for _, f := range r.check(parseFiles(t, good)) {
					t.Errorf("the check finds a violation in good example %d: %v", i, f)
				}
			}
		})
	}
}

func loadFiles(t *testing.T) []*file {
	t.Helper()
	root := filepath.Join("..", "..")
	sources := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && isIgnored(d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}

		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}

		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}

		sources[filepath.ToSlash(relative)] = string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	const minFiles = 100 // far fewer than the module has
	if len(sources) < minFiles {
		t.Fatalf("found only %d Go files, want %d or more", len(sources), minFiles)
	}

	return parseFiles(t, sources)
}

// isIgnored reports whether the go command ignores the folder.
func isIgnored(folder string) bool {
	return folder == "testdata" || strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "_")
}

// parseFiles parses source texts by path.
func parseFiles(t *testing.T, sources map[string]string) []*file {
	t.Helper()
	set := token.NewFileSet()
	var files []*file
	for name, text := range sources {
		syntax, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}

		files = append(files, &file{name, text, set, syntax})
	}

	return files
}
