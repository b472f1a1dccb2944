package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// mistake describes how one rank deviates from a program, the list of ops that all ranks perform.
// For example, rank 1 skips an AllReduce, and symmem has to report an error to the other ranks.
type mistake struct {
	kind      mistakeKind
	rank      int // world rank
	opIndex   int // index of the op in the program
	bodyIndex int // index of the call in the graph that the op launches, or 0
}

type mistakeKind int

const (
	noMistake          mistakeKind = iota
	killNow                        // dies instead of making the call
	killLater                      // dies after a short random delay
	abortNow                       // aborts the group instead of making the call
	abortLater                     // aborts the group after a short random delay
	cancelRegistration             // cancels a registration of memory with the group
	wrongCount
	wrongType
	skipCall
)

var mistakeNames = [...]string{
	noMistake:          "none",
	killNow:            "kill",
	killLater:          "later kill",
	abortNow:           "abort",
	abortLater:         "later abort",
	cancelRegistration: "canceled registration",
	wrongCount:         "wrong count",
	wrongType:          "wrong type",
	skipCall:           "skipped call",
}

func (m mistake) String() string {
	if m.kind == noMistake {
		return "no mistake"
	}

	// "op 7.2" is the call with index 2 in the graph that op 7 launches.
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.opIndex,
		m.bodyIndex)
}

// drawMistake draws a mistake at a collective, or noMistake if it finds no suitable collective.
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
		if !p.isSuitable(&m, &body[m.bodyIndex]) {
			continue
		}

		isArgumentWrong := m.kind == wrongCount || m.kind == wrongType
		if isArgumentWrong {
			// A captured graph contains the wrong argument from its first launch.
			m.opIndex = p.firstLaunch(m.opIndex)
		}

		return m
	}

	return mistake{kind: noMistake}
}

// isSuitable reports whether symmem has to detect mistake m at call o.
func (p *program) isSuitable(m *mistake, o *op) bool {
	switch {
	case !o.kind.isCollective() || !p.isMember(m.rank, o):
		return false
	case m.kind == wrongCount:
		return o.count != 1 // the wrong count would be 0
	case m.kind == skipCall:
		return !p.looksLikeNextCall(m)
	default: // a wrong type, a kill, an abort or a canceled registration
		return true
	}
}

// firstLaunch returns the index of the op that first launches the same graph as the op at index. If
// the op at index launches no graph, it returns index.
func (p *program) firstLaunch(index int) int {
	launch := &p.ops[index]
	if launch.kind != launchOp {
		return index
	}

	return slices.IndexFunc(p.ops, func(o op) bool {
		return o.kind == launchOp && o.graph == launch.graph
	})
}

// looksLikeNextCall reports whether the call that m skips looks like the rank's next call in the
// same group, so that symmem cannot detect the mistake.
func (p *program) looksLikeNextCall(m *mistake) bool {
	laterIndex := m.opIndex + 1
	skippedOp, laterOps := p.ops[m.opIndex:laterIndex], p.ops[laterIndex:]
	for g, members := range p.groups {
		if !slices.Contains(members, m.rank) {
			continue
		}

		skippedCalls := p.calls(g, skippedOp)
		laterCalls := p.calls(g, laterOps)
		if len(skippedCalls) == 0 || len(laterCalls) == 0 {
			continue
		}

		skipped, next := &skippedCalls[0], &laterCalls[0]
		if skipped.kind == next.kind && skipped.count == next.count {
			return true
		}
	}

	return false
}

// calls returns the collectives of a group in ops, including those in graphs that ops launch.
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
