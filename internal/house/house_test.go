// Package house holds no code, only tests that check the house: what its packages import, how long
// its files are, what its names are called and whether they are documented. Each rule says why it
// is one, and is itself tested with a small module that breaks it.
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

// module is the name that the module's own packages begin with.
const module = "symmem"

// file is one Go file of the module.
type file struct {
	path   string // from the module's root, with slashes
	source string
	set    *token.FileSet
	syntax *ast.File
}

// folder is the package's folder, "" for the root.
func (f *file) folder() string {
	if dir := path.Dir(f.path); dir != "." {
		return dir
	}
	return ""
}

func (f *file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// generated reports whether a program wrote the file, so that nobody reads it.
func (f *file) generated() bool { return ast.IsGenerated(f.syntax) }

// find is a breach of a rule by a node of the file.
func (f *file) find(at token.Pos, format string, args ...any) finding {
	return finding{f.path, f.set.Position(at).Line, fmt.Sprintf(format, args...)}
}

// finding is a breach of a rule.
type finding struct {
	path string
	line int
	what string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.what) }

// rule is something that holds in the whole house.
type rule struct {
	name string
	why  string
	// check returns what breaks the rule.
	check func(files []*file) []finding
	// bad are small modules, each of which breaks the rule; good ones keep it.
	bad, good []map[string]string
}

// each makes a rule's check of one that looks at one file at a time.
func each(check func(*file) []finding) func([]*file) []finding {
	return func(files []*file) []finding {
		var all []finding
		for _, f := range files {
			all = append(all, check(f)...)
		}
		return all
	}
}

var rules = slices.Concat(
	importRules, documentRules, sizeRules, wordRules, lockRules, seamRules, testRules,
)

func TestTheHouseKeepsItsRules(t *testing.T) {
	files := load(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(files) {
				t.Errorf("%v\n\tbecause %s", f, r.why)
			}
		})
	}
}

func TestTheRulesFindWhatBreaksThem(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if len(r.bad) == 0 || len(r.good) == 0 {
				t.Error("a rule without examples")
			}
			for i, bad := range r.bad {
				if len(r.check(parse(t, bad))) == 0 {
					t.Errorf("nothing found in bad example %d", i)
				}
			}
			for i, good := range r.good {
				for _, f := range r.check(parse(t, good)) {
					t.Errorf("good example %d: %v", i, f)
				}
			}
		})
	}
}

// load reads the module.
func load(t *testing.T) []*file {
	t.Helper()
	root := filepath.Join("..", "..")
	sources := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && skipped(d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		short, err := filepath.Rel(root, name)
		sources[filepath.ToSlash(short)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) < 100 {
		t.Fatalf("found %d Go files: that is not the house", len(sources))
	}
	return parse(t, sources)
}

// skipped reports whether the go command does not look into a folder.
func skipped(folder string) bool {
	return folder == "testdata" || strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "_")
}

// parse makes files of sources by path.
func parse(t *testing.T, sources map[string]string) []*file {
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
