package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// mistake describes how one rank deviates from the program. The zero mistake is none.
type mistake struct {
	kind mistakeKind
	rank int
	// opIndex selects the op at which the rank deviates. If the op launches a graph, bodyIndex
	// selects the call in the graph.
	opIndex, bodyIndex int
}

type mistakeKind int

const (
	noMistake mistakeKind = iota
	// killNow and abortNow act before the call, killLater and abortLater some time after it.
	killNow
	killLater
	abortNow
	abortLater
	cancelRegistration
	// wrongCount and wrongType change an argument of the call.
	wrongCount
	wrongType
	skipCall
)

var mistakeNames = [...]string{
	"none", "kill", "later kill", "abort", "later abort", "canceled registration", "wrong count",
	"wrong type", "skipped call",
}

func (m mistake) String() string {
	if m.kind == noMistake {
		return "no mistake"
	}
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.opIndex,
		m.bodyIndex)
}

// drawMistake draws a mistake of one of the kinds at a collective of the program. It returns none
// if it finds no suitable call. It never skips a call before an identical call, because symmem
// cannot detect that.
func drawMistake(d *rand.Rand, p *program, kinds ...mistakeKind) mistake {
	for range 100 {
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
		switch m.kind {
		case wrongCount:
			if o.count == 1 { // no smaller count is possible
				continue
			}
		case skipCall:
			if p.isUndetectable(&m) {
				continue
			}
		default:
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
		isInGroup := len(withSkipped) > len(later)
		if isInGroup && len(later) > 0 && withSkipped[0].kind == later[0].kind &&
			withSkipped[0].count == later[0].count {
			return true
		}
	}
	return false
}

// calls returns the collectives of a group in the ops from first to before end.
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
