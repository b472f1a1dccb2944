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

// It should be possible to order the files of a package so that callers precede the functions that
// they call. A reference from a later file to an earlier file is backward.

// maxBackwardReferences limits the backward references in the best order of a package's files.
const maxBackwardReferences = 10

// reference records that the file src uses at least one declaration of the file dst.
type reference struct{ src, dst string }

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

	const minReferences = 100 // far fewer than the backends have
	if total < minReferences {
		t.Errorf("found only %d references, want %d or more", total, minReferences)
	}
}

func TestBackwardReferences(t *testing.T) {
	for text, wantCount := range map[string]int{ // "ab" is a reference from file a to file b.
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

func referencesOf(p *packages.Package) []reference {
	found := map[reference]bool{}
	for _, f := range p.Syntax {
		src := filepath.Base(p.Fset.Position(f.Pos()).Filename)
		ast.Inspect(f, func(n ast.Node) bool {
			name, isName := n.(*ast.Ident)
			if !isName {
				return true
			}

			used := p.TypesInfo.Uses[name]
			isOfPackage := used != nil && used.Pkg() == p.Types
			if !isOfPackage {
				return true
			}

			dst := filepath.Base(p.Fset.Position(used.Pos()).Filename)
			if src != dst {
				found[reference{src, dst}] = true
			}

			return true
		})
	}

	return slices.SortedFunc(maps.Keys(found), func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst))
	})
}

// backwardReferences returns the backward references in the best order of the files. It uses hill
// climbing: it moves one file at a time, as long as a move removes backward references. The result
// is a local optimum.
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
