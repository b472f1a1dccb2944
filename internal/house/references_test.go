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

// A reader of a package should see the use of a declaration before the declaration. Suppose that
// a.go uses a function in b.go. This is a reference from a.go to b.go. If the files are read in the
// order b.go, a.go, the reference is backward. The tests search an order of the files with few
// backward references.

// maxBackwardReferences limits the number of backward references in a package.
const maxBackwardReferences = 10

// reference records that the file src uses declarations in another file of the package, dst.
type reference struct{ src, dst string }

// TestReferencesBetweenFilesOfBackends checks that few references are backward in each package of
// the backends. If a file uses another several times, this is a single reference.
func TestReferencesBetweenFilesOfBackends(t *testing.T) {
	backends, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
		Context: t.Context(), Dir: "../..",
	}, "./driver", "./driver/host", "./driver/nccl/...")
	if err != nil {
		t.Fatal(err)
	}

	total := 0
	for _, p := range backends {
		references := referencesOf(p)
		total += len(references)
		if backward := backwardReferences(references); len(backward) > maxBackwardReferences {
			t.Errorf("%s: %d references lead to earlier files, but at most %d are allowed; move the "+
				"declarations or invert the dependencies: %v", p.PkgPath, len(backward), maxBackwardReferences,
				backward)
		}
	}

	if total < 100 { // otherwise, the test would prove nothing
		t.Errorf("found only %d references, want 100 or more", total)
	}
}

// TestBackwardReferences checks the numbers of backward references in small examples. A reference
// from the file "a" to the file "b" is written "ab".
func TestBackwardReferences(t *testing.T) {
	for text, wantCount := range map[string]int{
		"ab bc ac":          0,
		"ab ba":             1,
		"ab bc ca":          1,
		"ab ba bc cb ac ca": 3,
		"ab cb ba dc cd":    2,
	} {
		var references []reference
		for pair := range strings.FieldsSeq(text) {
			references = append(references, reference{src: pair[:1], dst: pair[1:]})
		}

		backward := backwardReferences(references)
		if len(backward) != wantCount {
			t.Errorf("backwardReferences(%s) = %v, want %d", text, backward, wantCount)
		}
	}
}

// referencesOf returns the sorted references between the files of a package.
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
				dst := filepath.Base(p.Fset.Position(used.Pos()).Filename)
				found[reference{src, dst}] = true
			}

			return true
		})
	}

	maps.DeleteFunc(found, func(r reference, _ bool) bool { return r.src == r.dst })
	return slices.SortedFunc(maps.Keys(found), func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst))
	})
}

// backwardReferences searches an order of the files with few backward references, and returns
// these references. It moves each file to its best position until no move is an improvement.
func backwardReferences(references []reference) (backward []reference) {
	var order []string
	for _, r := range references {
		order = append(order, r.src, r.dst)
	}

	slices.Sort(order)
	order = slices.Compact(order)
	backward = backwardIn(order, references)
	for {
		countBefore := len(backward)
		for _, moved := range slices.Clone(order) {
			others := slices.DeleteFunc(slices.Clone(order), func(f string) bool { return f == moved })
			for i := range order {
				newOrder := slices.Insert(slices.Clone(others), i, moved)
				newBackward := backwardIn(newOrder, references)
				if len(newBackward) < len(backward) {
					order, backward = newOrder, newBackward
				}
			}
		}

		if len(backward) == countBefore {
			return backward
		}
	}
}

// backwardIn returns the references that are backward if the files are in the given order.
func backwardIn(order []string, references []reference) (backward []reference) {
	position := map[string]int{}
	for i, f := range order {
		position[f] = i
	}

	for _, r := range references {
		if position[r.src] > position[r.dst] {
			backward = append(backward, r)
		}
	}

	return backward
}
