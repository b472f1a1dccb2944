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
	// index selects the op at which the rank deviates. If that op launches a graph, body selects
	// the call within the graph; otherwise, body is 0.
	index, body int
}

type mistakeKind int

const (
	none mistakeKind = iota
	// killNow and abortNow take effect before the call, killLater and abortLater some time after
	// it.
	killNow
	killLater
	abortNow
	abortLater
	cancelRegistration
	// wrongCount passes a different count to the call, and wrongType a different type.
	wrongCount
	wrongType
	skipCall
)

var mistakeNames = [...]string{
	"none", "kill", "later kill", "abort", "later abort", "canceled registration", "wrong count",
	"wrong type", "skipped call",
}

func (m mistake) String() string {
	if m.kind == none {
		return "no mistake"
	}
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.index, m.body)
}

// drawMistake draws a mistake of one of the given kinds at a collective of the program. It never
// skips a call that is followed by an identical one, because symmem cannot detect such a skip.
func drawMistake(d *rand.Rand, p *program, kinds ...mistakeKind) mistake {
	for range 100 {
		m := mistake{kind: kinds[d.IntN(len(kinds))], rank: d.IntN(p.ranks)}
		if m.kind == none {
			return m
		}
		m.index = d.IntN(len(p.ops))
		body := p.body(&p.ops[m.index])
		m.body = d.IntN(len(body))
		o := &body[m.body]
		if !o.kind.collective() || !p.member(m.rank, o) {
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
			m.index = p.firstLaunch(m.index)
		}
		return m
	}
	return mistake{}
}

// firstLaunch returns the index of the first op that launches the same graph as the op at index.
// If that op does not launch a graph, firstLaunch returns index.
func (p *program) firstLaunch(index int) int {
	if o := &p.ops[index]; o.kind == launchGraph {
		for i := range p.ops {
			if p.ops[i].kind == launchGraph && p.ops[i].graph == o.graph {
				return i
			}
		}
	}
	return index
}

// isUndetectable reports whether skipping the call goes unnoticed in some group of the rank,
// because the next call in that group looks the same.
func (p *program) isUndetectable(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}
		all, own := p.calls(g, m.index, len(p.ops)), p.calls(g, m.index+1, len(p.ops))
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
			if o.kind.collective() && o.group == group {
				calls = append(calls, o)
			}
		}
	}
	return calls
}
