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
	// at is the index of the op, body that of the call in the graph that the op launches, else 0.
	at, body int
}

type mistakeKind int

const (
	// none makes no mistake: all results must be right.
	none mistakeKind = iota
	// killed kills the process instead of making the call.
	killed
	// killedSoon kills the process some time after the call.
	killedSoon
	// aborts aborts the group instead of making the call, abortsSoon some time after it.
	aborts
	abortsSoon
	// cancels cancels a registration instead of making the call.
	cancels
	// otherCount and otherType make the call with another count or type.
	otherCount
	otherType
	// skips does not make the call.
	skips
)

var mistakeNames = [...]string{
	"none", "killed", "killed soon", "aborts", "aborts soon", "cancels", "other count", "other type",
	"skips",
}

func (m mistake) String() string {
	if m.kind == none {
		return "no mistake"
	}
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.at, m.body)
}

// drawMistake draws a mistake of some kinds in a collective of the program. symmem can detect each:
// a skipped call is not followed by an equal one.
func drawMistake(d *rand.Rand, p *program, kinds ...mistakeKind) mistake {
	for range 100 {
		m := mistake{kind: kinds[d.IntN(len(kinds))], rank: d.IntN(p.ranks)}
		if m.kind == none {
			return m
		}
		m.at = d.IntN(len(p.ops))
		body := p.body(&p.ops[m.at])
		m.body = d.IntN(len(body))
		o := &body[m.body]
		if !o.kind.collective() || !p.member(m.rank, o) {
			continue
		}
		switch m.kind {
		case otherCount:
			if o.count == 1 {
				continue
			}
		case skips:
			if p.looksEqual(&m) {
				continue
			}
		default:
		}
		if m.kind == otherCount || m.kind == otherType {
			m.at = p.firstLaunch(m.at)
		}
		return m
	}
	return mistake{}
}

// firstLaunch returns the first op that launches the same graph as this one, or the op itself: a
// graph is captured once.
func (p *program) firstLaunch(at int) int {
	if o := &p.ops[at]; o.kind == launchGraph {
		for i := range p.ops {
			if p.ops[i].kind == launchGraph && p.ops[i].graph == o.graph {
				return i
			}
		}
	}
	return at
}

// looksEqual reports whether the call after a skipped one looks the same to the group.
func (p *program) looksEqual(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}
		all, own := p.calls(g, m.at, len(p.ops)), p.calls(g, m.at+1, len(p.ops))
		if len(all) > len(own) && len(own) > 0 && all[0].kind == own[0].kind &&
			all[0].count == own[0].count {
			return true
		}
	}
	return false
}

// calls returns the calls of a group from one op to another.
func (p *program) calls(group, from, to int) (calls []op) {
	for i := from; i < to; i++ {
		for _, o := range p.body(&p.ops[i]) {
			if o.kind.collective() && o.group == group {
				calls = append(calls, o)
			}
		}
	}
	return calls
}
