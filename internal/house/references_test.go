package house

import (
	"cmp"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// maxBackwardReferences limits the references from a file of a package to an earlier file, if the
// files are in the best order. A reader should see a declaration before those that it uses.
const maxBackwardReferences = 10

// reference leads from a file to a declaration in another file.
type reference struct{ src, dst string }

func TestReferencesBetweenFilesOfBackends(t *testing.T) {
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
		Context: t.Context(), Dir: "../..",
	}, "./driver", "./driver/host", "./driver/nccl/...")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, p := range all {
		references := referencesOf(p)
		seen += len(references)
		if backward := backwardReferences(references); len(backward) > maxBackwardReferences {
			t.Errorf("%s: %d references lead to earlier files, but at most %d are allowed; move the "+
				"declarations or invert the dependencies: %v", p.PkgPath, len(backward), maxBackwardReferences,
				backward)
		}
	}
	if seen < 100 {
		t.Errorf("found only %d references, want 100 or more", seen)
	}
}

func TestBackwardReferences(t *testing.T) {
	for _, test := range []struct {
		references string
		backward   int
	}{
		{"ab bc ac", 0}, {"ab ba", 1}, {"ab bc ca", 1}, {"ab ba bc cb ac ca", 3}, {"ab cb ba dc cd", 2},
	} {
		var references []reference
		for name := range strings.FieldsSeq(test.references) {
			references = append(references, reference{name[:1], name[1:]})
		}
		if backward := backwardReferences(references); len(backward) != test.backward {
			t.Errorf("backwardReferences(%s) = %v, want %d", test.references, backward, test.backward)
		}
	}
}

func referencesOf(p *packages.Package) []reference {
	found := map[reference]bool{}
	for _, f := range p.Syntax {
		src := filepath.Base(p.Fset.Position(f.Pos()).Filename)
		ast.Inspect(f, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if used := p.TypesInfo.Uses[name]; used != nil && used.Pkg() == p.Types {
				found[reference{src, filepath.Base(p.Fset.Position(used.Pos()).Filename)}] = true
			}
			return true
		})
	}
	maps.DeleteFunc(found, func(a reference, _ bool) bool { return a.src == a.dst })
	return slices.SortedFunc(maps.Keys(found), func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst))
	})
}

// backwardReferences returns the backward references in an order of the files with few of them. It
// moves each file to its best position until no move is an improvement.
func backwardReferences(references []reference) (backward []reference) {
	var order []string
	for _, a := range references {
		order = append(order, a.src, a.dst)
	}
	slices.Sort(order)
	order = slices.Compact(order)
	for backward = backwardIn(order, references); ; {
		before := len(backward)
		for _, f := range slices.Clone(order) {
			rest := slices.DeleteFunc(slices.Clone(order), func(o string) bool { return o == f })
			for i := range order {
				tried := slices.Insert(slices.Clone(rest), i, f)
				if n := backwardIn(tried, references); len(n) < len(backward) {
					order, backward = tried, n
				}
			}
		}
		if len(backward) == before {
			return backward
		}
	}
}

func backwardIn(order []string, references []reference) (backward []reference) {
	position := map[string]int{}
	for i, f := range order {
		position[f] = i
	}
	for _, a := range references {
		if position[a.src] > position[a.dst] {
			backward = append(backward, a)
		}
	}
	return backward
}
