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

// maxArrowsUp limits the number of references from a file of a package to an earlier file, if the
// files are in the best possible order. Someone who reads the files in that order should see a
// declaration before the declarations that it uses.
const maxArrowsUp = 10

// arrow represents a reference from a file to a declaration in another file.
type arrow struct{ src, dst string }

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
		arrows := arrowsOf(p)
		seen += len(arrows)
		if up := arrowsUp(arrows); len(up) > maxArrowsUp {
			t.Errorf("%s: %d references lead to earlier files, but at most %d are allowed; move the "+
				"declarations or invert the dependencies: %v", p.PkgPath, len(up), maxArrowsUp, up)
		}
	}
	if seen < 100 {
		t.Errorf("found only %d references, want 100 or more", seen)
	}
}

func TestArrowsUp(t *testing.T) {
	for _, test := range []struct {
		arrows string
		up     int
	}{
		{"ab bc ac", 0}, {"ab ba", 1}, {"ab bc ca", 1}, {"ab ba bc cb ac ca", 3}, {"ab cb ba dc cd", 2},
	} {
		var arrows []arrow
		for name := range strings.FieldsSeq(test.arrows) {
			arrows = append(arrows, arrow{name[:1], name[1:]})
		}
		if up := arrowsUp(arrows); len(up) != test.up {
			t.Errorf("arrowsUp(%s) = %v, want %d arrows", test.arrows, up, test.up)
		}
	}
}

func arrowsOf(p *packages.Package) []arrow {
	found := map[arrow]bool{}
	for _, f := range p.Syntax {
		src := filepath.Base(p.Fset.Position(f.Pos()).Filename)
		ast.Inspect(f, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if used := p.TypesInfo.Uses[name]; used != nil && used.Pkg() == p.Types {
				found[arrow{src, filepath.Base(p.Fset.Position(used.Pos()).Filename)}] = true
			}
			return true
		})
	}
	maps.DeleteFunc(found, func(a arrow, _ bool) bool { return a.src == a.dst })
	return slices.SortedFunc(maps.Keys(found), func(a, b arrow) int {
		return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst))
	})
}

// arrowsUp orders the files so that few arrows lead up, and returns the remaining arrows that do.
// It moves each file to its best position until no move is an improvement.
func arrowsUp(arrows []arrow) (up []arrow) {
	var order []string
	for _, a := range arrows {
		order = append(order, a.src, a.dst)
	}
	slices.Sort(order)
	order = slices.Compact(order)
	for up = arrowsAgainst(order, arrows); ; {
		before := len(up)
		for _, f := range slices.Clone(order) {
			rest := slices.DeleteFunc(slices.Clone(order), func(o string) bool { return o == f })
			for i := range order {
				tried := slices.Insert(slices.Clone(rest), i, f)
				if n := arrowsAgainst(tried, arrows); len(n) < len(up) {
					order, up = tried, n
				}
			}
		}
		if len(up) == before {
			return up
		}
	}
}

// arrowsAgainst returns the arrows that lead up if the files have the given order.
func arrowsAgainst(order []string, arrows []arrow) (up []arrow) {
	position := map[string]int{}
	for i, f := range order {
		position[f] = i
	}
	for _, a := range arrows {
		if position[a.src] > position[a.dst] {
			up = append(up, a)
		}
	}
	return up
}
