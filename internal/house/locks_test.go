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

// In rankedFolders, every lock has a rank in the lock order.
var rankedFolders = []string{
	"", "driver/host", "driver/nccl", "driver/nccl/internal/direct", "driver/nccl/internal/gpu",
	"driver/nccl/internal/memory",
	"driver/nccl/internal/p2p", "driver/nccl/internal/stream", "internal/control/shm",
}

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
				kind := ""
				if ok {
					kind = pkg.Name + "." + s.Sel.Name
				}
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

// misdocumentedLocks compares the ranks in each locks.go with the list in the package's doc.go.
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

// rankedNames returns the locks in a file in the order of their ranks, without the package name.
func rankedNames(f *file) []string {
	names := map[int]string{}
	var orders []int
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		position, isPosition := call.Args[0].(*ast.BasicLit)
		name, isName := call.Args[1].(*ast.BasicLit)
		if !isPosition || !isName || position.Kind != token.INT || name.Kind != token.STRING {
			return true
		}
		order, _ := strconv.Atoi(position.Value)
		_, shortName, _ := strings.Cut(strings.Trim(name.Value, `"`), ".")
		names[order] = shortName
		orders = append(orders, order)
		return true
	})
	sort.Ints(orders)
	var sorted []string
	for _, order := range orders {
		sorted = append(sorted, names[order])
	}
	return sorted
}

// documentedNames returns the indented lines below "# Lock order" in a package's documentation.
func documentedNames(f *file) (names []string) {
	_, text, _ := strings.Cut(f.syntax.Doc.Text(), "# Lock order\n")
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "\t"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}
