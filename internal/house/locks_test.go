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

// Goroutines that acquire the same locks in different orders can block each other forever.
// Therefore, the locks of some packages have ranks: numbers that determine the order in which a
// goroutine must acquire them. The file locks.go of a package declares the ranks:
//
//	func (recvPipeMu) Rank() ranked.Rank { return ranked.Host.At(3, "host.recvPipe.mu") }
//	func (sendPipeMu) Rank() ranked.Rank { return ranked.Host.At(4, "host.sendPipe.mu") }
//
// Its file doc.go must list the names of the locks in the same order, without the package's name:
//
//	// # Lock order
//	//
//	//	recvPipe.mu
//	//	sendPipe.mu

// rankedFolders lists the packages in which every lock must have a rank.
var rankedFolders = []string{
	"", "driver/host", "driver/nccl", "driver/nccl/internal/direct", "driver/nccl/internal/gpu",
	"driver/nccl/internal/memory",
	"driver/nccl/internal/p2p", "driver/nccl/internal/stream", "internal/control/shm",
}

// Sources of examples.
const (
	// abDoc is a doc.go that lists the locks a.mu and b.mu.
	abDoc = "// Package p has locks.\n//\n// # Lock order\n//\n//\ta.mu\n//\tb.mu\n//\n// So.\n" +
		"package p\n"
	// noLocksDoc is a doc.go that lists no locks.
	noLocksDoc = "// Package p is one.\npackage p\n"
	// abLocks is a locks.go with the same order as abDoc.
	abLocks = "package p\n\nvar a = b.At(1, \"p.a.mu\")\nvar b = b.Waiting(2, \"p.b.mu\")\n"
	// baLocks has the opposite order.
	baLocks = "package p\n\nvar a = b.At(2, \"p.a.mu\")\nvar b = b.At(1, \"p.b.mu\")\n"
	// abcLocks has a third lock, which abDoc does not list.
	abcLocks = abLocks + "\nvar c = b.At(3, \"p.c.mu\")\n"
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
		reason: "developers read it before they add or nest locks",
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

// unrankedLockTypes lists the types of locks that have no rank.
var unrankedLockTypes = []string{"sync.Mutex", "sync.RWMutex", "spin.Lock"}

// unrankedLocks returns a finding for each use of such a type in a file of rankedFolders.
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

// rankedNames returns the names of the locks in a locks.go, in the order of their ranks. The names
// do not include the package: the name of the lock "shm.Counts.Mu" is Counts.Mu.
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

// rankedLock returns the rank and the name of a lock if n is a call that gives it a rank, such as
// ranked.SHM.At(2, "shm.Counts.Mu"). Any call with an integer and a string as arguments counts.
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

	rank, _ = strconv.Atoi(number.Value)
	longName := strings.Trim(text.Value, `"`)
	_, name, _ = strings.Cut(longName, ".")
	return rank, name, true
}

// documentedNames returns the names of the locks in a doc.go: the indented lines below the heading
// "Lock order".
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
