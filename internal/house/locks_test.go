package house

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// rankedFolders lists the packages in which every lock must have a rank in the lock order.
var rankedFolders = []string{
	"", "driver/host", "driver/nccl", "driver/nccl/internal/direct", "driver/nccl/internal/gpu",
	"driver/nccl/internal/memory",
	"driver/nccl/internal/p2p", "driver/nccl/internal/stream", "internal/control/shm",
}

// Files of examples: the documentation of two locks, and declarations of their ranks that are in
// the same order, in the opposite order, or include a third lock.
const (
	lockedDoc = "// Package p has locks.\n//\n// # Lock order\n//\n//\ta.mu\n//\tb.mu\n//\n// So.\n" +
		"package p\n"
	lockedClasses = "package p\n\nvar a = b.At(1, \"p.a.mu\")\nvar b = b.Waiting(2, \"p.b.mu\")\n"
	swapped       = "package p\n\nvar a = b.At(2, \"p.a.mu\")\nvar b = b.At(1, \"p.b.mu\")\n"
	undocumented  = lockedClasses + "\nvar c = b.At(3, \"p.c.mu\")\n"
)

var lockRules = []rule{
	{
		name:   "locks have ranks",
		reason: "a lock order that is not checked is eventually violated, which causes deadlocks",
		check: eachFile(func(f *file) []finding {
			var all []finding
			if f.isTest() || !slices.Contains(rankedFolders, f.folder()) {
				return nil
			}

			ast.Inspect(f.syntax, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}

				pkg, ok := s.X.(*ast.Ident)
				if !ok {
					return true
				}

				kind := pkg.Name + "." + s.Sel.Name
				if kind == "sync.Mutex" || kind == "sync.RWMutex" || kind == "spin.Lock" {
					all = append(all, f.find(n.Pos(), "%s has no rank: see internal/ranked", kind))
				}

				return true
			})
			return all
		}),
		bad: []map[string]string{
			{"a.go": "package a\n\nimport \"sync\"\n\nvar mu sync.Mutex\n"},
			{"driver/host/a.go": "package a\n\nimport \"symmem/internal/spin\"\n\nvar mu spin.Lock\n"},
		},
		good: []map[string]string{
			{"a_test.go": "package a\n\nimport \"sync\"\n\nvar mu sync.Mutex\n"},
			{"internal/a/a.go": "package a\n\nimport \"sync\"\n\nvar mu sync.Mutex\n"},
		},
	},
	{
		name:   "the documentation lists the locks in their order",
		reason: "developers read it before they add or nest locks",
		check:  misdocumentedLocks,
		bad: []map[string]string{
			{"p/doc.go": lockedDoc, "p/locks.go": swapped},
			{"p/doc.go": lockedDoc, "p/locks.go": undocumented},
			{"p/doc.go": "// Package p is one.\npackage p\n", "p/locks.go": lockedClasses},
		},
		good: []map[string]string{
			{"p/doc.go": lockedDoc, "p/locks.go": lockedClasses},
			{"p/doc.go": "// Package p is one.\npackage p\n"},
		},
	},
}

// misdocumentedLocks returns a finding for each locks.go whose locks, in the order of their ranks,
// are not the same as in the package's doc.go.
func misdocumentedLocks(files []*file) []finding {
	var all []finding
	for _, f := range files {
		if path.Base(f.path) != "locks.go" {
			continue
		}

		want := strings.Join(rankedNames(f), ", ")
		got := ""
		for _, other := range files {
			if other.folder() == f.folder() && path.Base(other.path) == "doc.go" {
				got = strings.Join(documentedNames(other), ", ")
			}
		}

		if got != want {
			all = append(all, f.find(f.syntax.Package, "doc.go has %q, want %q", got, want))
		}
	}

	return all
}

// rankedNames returns the names of the locks in a locks.go in the order of their ranks, without
// the package name. It finds them in calls such as ranked.SHM.At(2, "shm.Counts.Mu").
func rankedNames(f *file) []string {
	names := map[int]string{} // by rank
	var ranks []int
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}

		rank, isRank := call.Args[0].(*ast.BasicLit)
		name, isName := call.Args[1].(*ast.BasicLit)
		if !isRank || !isName || rank.Kind != token.INT || name.Kind != token.STRING {
			return true
		}

		number, _ := strconv.Atoi(rank.Value) // an integer literal
		_, shortName, _ := strings.Cut(strings.Trim(name.Value, `"`), ".")
		names[number] = shortName
		ranks = append(ranks, number)
		return true
	})
	sort.Ints(ranks)
	var sorted []string
	for _, rank := range ranks {
		sorted = append(sorted, names[rank])
	}

	return sorted
}

// documentedNames returns the names of the locks in a package's documentation: the indented lines
// below the heading "Lock order".
func documentedNames(f *file) (names []string) {
	_, text, _ := strings.Cut(f.syntax.Doc.Text(), "# Lock order\n")
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "\t"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}

	return names
}
