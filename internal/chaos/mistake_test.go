package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// mistake describes how one rank deviates from a program, the list of ops that all ranks perform.
// For example, rank 1 skips an AllReduce, so that symmem has to report an error to the others.
type mistake struct {
	kind      mistakeKind
	rank      int // world rank
	opIndex   int // index of the op in the program
	bodyIndex int // index of the call in the graph, if the op launches one
}

type mistakeKind int

const (
	noMistake          mistakeKind = iota
	killNow                        // instead of the call
	killLater                      // after a short random delay
	abortNow                       // aborts the group instead of the call
	abortLater                     // aborts the group after a short random delay
	cancelRegistration             // of memory with a group
	wrongCount
	wrongType
	skipCall
)

// mistakeNames is indexed by mistakeKind.
var mistakeNames = [...]string{
	"none", "kill", "later kill", "abort", "later abort", "canceled registration", "wrong count",
	"wrong type", "skipped call",
}

func (m mistake) String() string {
	if m.kind == noMistake {
		return "no mistake"
	}

	// "op 7.2" is the call with index 2 in the graph that op 7 launches.
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.opIndex,
		m.bodyIndex)
}

// drawMistake draws a mistake at a collective of the program. It returns no mistake if no
// collective is suitable.
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
			continue // the wrong count would be 0
		}

		if m.kind == skipCall && p.isUndetectable(&m) {
			continue
		}

		isArgumentWrong := m.kind == wrongCount || m.kind == wrongType
		if isArgumentWrong {
			// A captured graph contains the wrong argument from its first launch.
			m.opIndex = p.firstLaunch(m.opIndex)
		}

		return m
	}

	return mistake{}
}

// firstLaunch returns the index of the first launch of the graph that the op at index launches. It
// returns index if that op launches no graph.
func (p *program) firstLaunch(index int) int {
	launch := &p.ops[index]
	if launch.kind != launchOp {
		return index
	}

	return slices.IndexFunc(p.ops, func(o op) bool {
		return o.kind == launchOp && o.graph == launch.graph
	})
}

// isUndetectable reports whether the rank's next call in the group looks like the skipped call of
// m, so that symmem cannot detect the mistake.
func (p *program) isUndetectable(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}

		skipped := p.calls(g, p.ops[m.opIndex:m.opIndex+1])
		later := p.calls(g, p.ops[m.opIndex+1:])
		if len(skipped) == 0 || len(later) == 0 {
			continue
		}

		if skipped[0].kind == later[0].kind && skipped[0].count == later[0].count {
			return true
		}
	}

	return false
}

// calls returns the collectives of a group in ops and in the graphs that they launch.
func (p *program) calls(group int, ops []op) (calls []op) {
	for i := range ops {
		for _, o := range p.body(&ops[i]) {
			if o.kind.isCollective() && o.group == group {
				calls = append(calls, o)
			}
		}
	}

	return calls
}
