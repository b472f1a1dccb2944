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

// To avoid deadlocks, goroutines acquire locks in the order of numbers, called ranks. The file
// locks.go of a package declares the ranks of the package's locks:
//
//	func (sendPipeMu) Rank() ranked.Rank { return ranked.Host.At(4, "host.sendPipe.mu") }
//
// The package's doc.go lists the locks in this order, without the package name: "sendPipe.mu".

// rankedFolders lists the packages in which every lock must have a rank.
var rankedFolders = []string{
	"", "driver/host", "driver/nccl", "driver/nccl/internal/direct", "driver/nccl/internal/gpu",
	"driver/nccl/internal/memory", "driver/nccl/internal/p2p", "driver/nccl/internal/stream",
	"internal/control/shm",
}

// Examples of doc.go and locks.go. The names state the order of the locks a, b and c, such as a
// before b in abDoc.
const (
	abDoc = "// Package p has locks.\n//\n// # Lock order\n//\n//\ta.mu\n//\tb.mu\n//\n// Text.\n" +
		"package p\n"
	noLocksDoc = "// Package p is one.\npackage p\n"
	abLocks    = "package p\n\nvar a = r.At(1, \"p.a.mu\")\nvar b = r.Waiting(2, \"p.b.mu\")\n"
	baLocks    = "package p\n\nvar a = r.At(2, \"p.a.mu\")\nvar b = r.At(1, \"p.b.mu\")\n"
	abcLocks   = abLocks + "\nvar c = r.At(3, \"p.c.mu\")\n"
)

var lockRules = []rule{
	{
		name:   "locks have ranks",
		reason: "a lock order that is not checked is eventually violated, which causes deadlocks",
		check:  eachFile(unrankedLocks),
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
		reason: "developers read the list before they add or nest locks",
		check:  misdocumentedLocks,
		bad: []map[string]string{
			{"p/doc.go": abDoc, "p/locks.go": baLocks},
			{"p/doc.go": abDoc, "p/locks.go": abcLocks},
			{"p/doc.go": noLocksDoc, "p/locks.go": abLocks},
		},
		good: []map[string]string{
			{"p/doc.go": abDoc, "p/locks.go": abLocks},
			{"p/doc.go": noLocksDoc},
		},
	},
}

var unrankedLockTypes = []string{"sync.Mutex", "sync.RWMutex", "spin.Lock"}

func unrankedLocks(f *file) []finding {
	if f.isTest() || !slices.Contains(rankedFolders, f.folder()) {
		return nil
	}

	var all []finding
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		selector, isSelector := n.(*ast.SelectorExpr) // such as sync.Mutex
		if !isSelector {
			return true
		}

		pkg, isName := selector.X.(*ast.Ident)
		if !isName {
			return true
		}

		lockType := pkg.Name + "." + selector.Sel.Name
		if slices.Contains(unrankedLockTypes, lockType) {
			all = append(all, f.find(n.Pos(), "%s has no rank: see internal/ranked", lockType))
		}

		return true
	})
	return all
}

// misdocumentedLocks compares each locks.go with the doc.go of its package.
func misdocumentedLocks(files []*file) []finding {
	var all []finding
	for _, f := range files {
		if path.Base(f.path) != "locks.go" {
			continue
		}

		want := strings.Join(rankedNames(f), ", ")
		got := ""
		for _, other := range files {
			isDoc := other.folder() == f.folder() && path.Base(other.path) == "doc.go"
			if isDoc {
				got = strings.Join(documentedNames(other), ", ")
			}
		}

		if got != want {
			all = append(all, f.find(f.syntax.Package, "doc.go has %q, want %q", got, want))
		}
	}

	return all
}

// rankedNames returns the names of the locks in a locks.go, sorted by rank.
func rankedNames(f *file) []string {
	names := map[int]string{} // by rank
	var ranks []int
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		rank, name, isRanked := rankedLock(n)
		if isRanked {
			names[rank] = name
			ranks = append(ranks, rank)
		}

		return true
	})
	sort.Ints(ranks)
	var sorted []string
	for _, rank := range ranks {
		sorted = append(sorted, names[rank])
	}

	return sorted
}

// rankedLock recognizes a call whose arguments are an integer and a string. For example, it returns
// the rank 2 and the name "Counts.Mu" for ranked.SHM.At(2, "shm.Counts.Mu").
func rankedLock(n ast.Node) (rank int, name string, isRanked bool) {
	call, isCall := n.(*ast.CallExpr)
	if !isCall || len(call.Args) != 2 {
		return 0, "", false
	}

	number, isLiteral := call.Args[0].(*ast.BasicLit)
	if !isLiteral || number.Kind != token.INT {
		return 0, "", false
	}

	text, isLiteral := call.Args[1].(*ast.BasicLit)
	if !isLiteral || text.Kind != token.STRING {
		return 0, "", false
	}

	rank, err := strconv.Atoi(number.Value)
	fullName := strings.Trim(text.Value, `"`)
	_, name, _ = strings.Cut(fullName, ".") // drops the name of the package
	return rank, name, err == nil
}

// documentedNames returns the indented lines below the heading "Lock order" of a doc.go.
func documentedNames(f *file) (names []string) {
	_, text, _ := strings.Cut(f.syntax.Doc.Text(), "# Lock order\n")
	for line := range strings.Lines(text) {
		name, isIndented := strings.CutPrefix(line, "\t")
		if isIndented {
			names = append(names, strings.TrimSpace(name))
		}
	}

	return names
}
