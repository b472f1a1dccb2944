package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// mistake describes how one rank deviates from the program.
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

// drawMistake draws a mistake at a collective of the program. It skips no call before an identical
// one, because symmem cannot detect that.
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
			if o.count == 1 {
				continue
			}
		case skipCall:
			if p.isUndetectable(&m) {
				continue
			}
		default:
		}
		if m.kind == wrongCount || m.kind == wrongType {
			m.opIndex = p.firstLaunch(m.opIndex)
		}
		return m
	}
	return mistake{}
}

// firstLaunch returns the index of the first op that launches the same graph, or index for other
// ops.
func (p *program) firstLaunch(index int) int {
	if o := &p.ops[index]; o.kind == launchOp {
		for i := range p.ops {
			if p.ops[i].kind == launchOp && p.ops[i].graph == o.graph {
				return i
			}
		}
	}
	return index
}

// isUndetectable reports whether the next call in some group of the rank looks like the skipped
// one.
func (p *program) isUndetectable(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}
		all, own := p.calls(g, m.opIndex, len(p.ops)), p.calls(g, m.opIndex+1, len(p.ops))
		if len(all) > len(own) && len(own) > 0 && all[0].kind == own[0].kind &&
			all[0].count == own[0].count {
			return true
		}
	}
	return false
}

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
