package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A program is a list of ops that all ranks perform. In some programs, one rank makes a mistake at
// one op. For example, rank 1 skips the collective of op 5, while ranks 0 and 2 call it and wait
// for rank 1. symmem must then report an error to ranks 0 and 2. An op can also launch a graph,
// which was captured earlier and contains several calls. The mistake then affects one of them.

// mistake describes how one rank deviates from a program. The zero mistake is none.
type mistake struct {
	kind mistakeKind
	rank int // world rank
	// opIndex is the index of the op in the program. If the op launches a graph, bodyIndex is the
	// index of the call in the graph.
	opIndex, bodyIndex int
}

// mistakeKind is the kind of a mistake.
type mistakeKind int

const (
	noMistake mistakeKind = iota
	// The rank kills itself or aborts the group: before the call, or some time after it.
	killNow
	killLater
	abortNow
	abortLater
	// cancelRegistration cancels a registration of memory with a group.
	cancelRegistration
	// wrongCount and wrongType change an argument of the call.
	wrongCount
	wrongType
	skipCall
)

// mistakeNames holds the names of the kinds, in their order.
var mistakeNames = [...]string{
	"none", "kill", "later kill", "abort", "later abort", "canceled registration", "wrong count",
	"wrong type", "skipped call",
}

// String describes the mistake in the report of a failed test.
func (m mistake) String() string {
	if m.kind == noMistake {
		return "no mistake"
	}

	// "op 7.2" is the call with index 2 in the graph that op 7 launches.
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.opIndex,
		m.bodyIndex)
}

// drawMistake draws a mistake of one of the kinds at a collective of the program. It returns none
// if it finds no suitable collective.
func drawMistake(d *rand.Rand, p *program, kinds ...mistakeKind) mistake {
	const attempts = 100 // enough for programs with few suitable calls
	for range attempts {
		m := mistake{kind: kinds[d.IntN(len(kinds))], rank: d.IntN(p.ranks)}
		if m.kind == noMistake {
			return m
		}

		m.opIndex = d.IntN(len(p.ops))
		body := p.body(&p.ops[m.opIndex])
		m.bodyIndex = d.IntN(len(body))
		o := &body[m.bodyIndex]
		if !o.kind.isCollective() || !p.isMember(m.rank, o) {
			continue
		}

		if m.kind == wrongCount && o.count == 1 {
			continue // the wrong count is smaller by 1, and must not be 0
		}

		if m.kind == skipCall && p.isUndetectable(&m) {
			continue
		}

		isArgumentWrong := m.kind == wrongCount || m.kind == wrongType
		if isArgumentWrong {
			// The graph is captured once, with the wrong argument. So its first launch is wrong, too.
			m.opIndex = p.firstLaunch(m.opIndex)
		}

		return m
	}

	return mistake{}
}

// firstLaunch returns the index of the first op that launches the same graph as the op at index.
// If this op launches no graph, it returns index.
func (p *program) firstLaunch(index int) int {
	o := &p.ops[index]
	if o.kind != launchOp {
		return index
	}

	return slices.IndexFunc(p.ops, func(other op) bool {
		return other.kind == launchOp && other.graph == o.graph
	})
}

// isUndetectable reports whether symmem cannot detect that the call of m was skipped. The rank's
// next call in the same group then takes its place, because it has the same kind and count.
func (p *program) isUndetectable(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}

		withSkipped := p.calls(g, m.opIndex, len(p.ops))
		later := p.calls(g, m.opIndex+1, len(p.ops))
		isSkippedInGroup := len(withSkipped) > len(later)
		if !isSkippedInGroup || len(later) == 0 {
			continue
		}

		skipped := withSkipped[0]
		next := later[0]
		if skipped.kind == next.kind && skipped.count == next.count {
			return true
		}
	}

	return false
}

// calls returns the collectives of a group in the ops with indexes from first to end-1. It includes
// those in graphs that the ops launch.
func (p *program) calls(group, first, end int) (calls []op) {
	for i := first; i < end; i++ {
		for _, o := range p.body(&p.ops[i]) {
			if o.kind.isCollective() && o.group == group {
				calls = append(calls, o)
			}
		}
	}

	return calls
}
