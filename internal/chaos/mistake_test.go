package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// mistake describes how one rank deviates from the program, which is a list of ops that all ranks
// perform. The zero mistake is none.
type mistake struct {
	kind mistakeKind
	rank int // world rank
	// opIndex selects the op at which the rank deviates. If the op launches a graph, bodyIndex
	// selects the call in the graph.
	opIndex, bodyIndex int
}

// mistakeKind is the kind of a mistake.
type mistakeKind int

const (
	noMistake mistakeKind = iota
	// killNow and abortNow act before the call, killLater and abortLater some time after it.
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
// if it finds no suitable call. It never skips a call before an identical call, because symmem
// cannot detect that.
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

		if m.kind == wrongCount && o.count == 1 { // no smaller count is possible
			continue
		}

		if m.kind == skipCall && p.isUndetectable(&m) {
			continue
		}

		if m.kind == wrongCount || m.kind == wrongType {
			// A wrong argument in a graph affects all launches of the graph.
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

// isUndetectable reports whether skipping the call of m cannot be detected, because the rank's
// next call in the same group looks like the skipped call.
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

		skipped, next := withSkipped[0], later[0]
		if skipped.kind == next.kind && skipped.count == next.count {
			return true
		}
	}

	return false
}

// calls returns the collectives of a group in the ops with indexes from first to end-1, including
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
