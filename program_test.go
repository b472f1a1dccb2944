package symmem_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"symmem"
)

// Random programs exercise a pool on all ranks at once. For example, a program allocates a buffer
// of 2 MiB, splits the world into groups, sums the buffer in one of the groups, and frees it. All
// ranks run the same steps, so each buffer must have the same place, which is its segment and
// offset, on all ranks. The addresses of the segments are random and differ between ranks.

// step is a statement of a random program.
type step struct {
	kind   stepKind
	choice int   // any number; modulo the number of buffers or groups, it selects one of them
	bytes  int64 // to allocate or, for stepTrim, to keep
}

type stepKind int

const (
	stepAlloc  stepKind = iota
	stepFree            // free a buffer, if there is one
	stepScope           // allocate in a scope, which registers the memory with a group
	stepSum             // all-reduce a buffer, if there is one
	stepGather          // all-gather into a buffer, if there is one
	stepSplit           // split the world into 1 to 3 groups
	stepTrim            // unmap segments without buffers
	stepKinds           // number of kinds
)

// drawProgram draws 1 to 40 steps. Buffers of up to 3 MiB fill segments of 4 MiB quickly.
func drawProgram(rt *rapid.T) []step {
	steps := rapid.Custom(func(rt *rapid.T) step {
		return step{
			kind:   stepKind(rapid.IntRange(0, int(stepKinds)-1).Draw(rt, "kind")),
			choice: rapid.IntRange(0, 1000).Draw(rt, "choice"),
			bytes:  rapid.Int64Range(1, 3*mib).Draw(rt, "bytes"),
		}
	})
	return rapid.SliceOfN(steps, 1, 40).Draw(rt, "program")
}

// programState is the state of a program on one rank.
type programState struct {
	*rank
	pool    *symmem.Pool
	live    []symmem.Buffer
	groups  []*symmem.Group // the world and the rank's groups of stepSplit
	history []string        // all steps, and the places of the buffers that they sum or gather
}

// run executes a step. It fails the test if a call fails or a result is wrong.
func (m *programState) run(s step) {
	m.history = append(m.history, fmt.Sprintf("%+v", s))
	switch s.kind {
	case stepAlloc:
		m.live = append(m.live, m.alloc(m.pool, s.bytes))
	case stepFree:
		m.free(s.choice)
	case stepScope:
		g := m.groups[s.choice%len(m.groups)]
		m.ok(m.pool.With(m.ctx, g, func(scope *symmem.Scope) error {
			b, err := scope.Alloc(s.bytes)
			m.live = append(m.live, b)
			return err
		}))
	case stepSum, stepGather:
		m.compute(s)
	case stepSplit:
		colors := 1 + s.choice%3 // the ranks of each color form a group
		m.groups = append(m.groups, m.split(m.World(), m.Rank()%colors))
	case stepTrim:
		m.ok(m.pool.Trim(m.ctx, s.bytes))
	case stepKinds: // not a step
	}
}

// free frees the buffer that choice selects, if there is one.
func (m *programState) free(choice int) {
	if len(m.live) == 0 {
		return
	}

	i := choice % len(m.live)
	m.ok(m.live[i].Free())
	m.live = append(m.live[:i], m.live[i+1:]...)
}

// compute runs a stepSum or a stepGather on one of the live buffers, and checks the result.
func (m *programState) compute(s step) {
	if len(m.live) == 0 {
		return
	}

	b := m.live[s.choice%len(m.live)]
	g := m.groups[s.choice%len(m.groups)]
	m.history = append(m.history, place(b))
	if s.kind == stepSum {
		m.checkSum(g, b)
		return
	}

	m.checkGather(g, b, s)
}

// checkGather divides a buffer into a part for each rank, and gathers the parts in place. Before,
// each rank fills the whole buffer with its number in the group. Afterwards, part 0 must contain
// zeros, part 1 ones, and so on.
func (m *programState) checkGather(g *symmem.Group, b symmem.Buffer, s step) {
	const elementBytes = 4
	count := b.Size() / elementBytes / int64(g.Size()) // elements of a part
	offset := int64(g.Rank()) * count * elementBytes
	part, err := b.Memory().Slice(offset, count*elementBytes)
	m.ok(err)
	m.fill(b, float32(g.Rank()))
	m.ok(g.AllGather(m.ctx, part, b.Memory(), count, symmem.Float32, nil))
	m.synchronize()
	for i, got := range m.floats(b)[:count*int64(g.Size())] {
		want := float32(int64(i) / count) // the rank that contributed the element
		if got != want {
			m.failf("%+v: element %d = %v, want %v", s, i, got, want)
		}
	}
}

// TestRandomPrograms runs random programs. Sums and gathered elements must be right, and the
// histories must be the same on all ranks.
func TestRandomPrograms(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(2, 4).Draw(rt, "ranks")
		program := drawProgram(rt)
		options := symmem.Options{
			Scatter: rapid.Uint64Range(1, 1<<32).Draw(rt, "scatter"), Timeout: 20 * time.Second,
		}
		var histories errorTexts // compares texts; an error carries the history of a rank
		// runRanks needs a *testing.T instead of the *rapid.T.
		passed := t.Run("", func(t *testing.T) {
			runRanks(t, ranks, options, func(r *rank) {
				m := &programState{rank: r, pool: r.pool(), groups: []*symmem.Group{r.World()}}
				for _, s := range program {
					m.run(s)
				}

				r.ok(r.World().Check(r.ctx))
				histories.add(r, errors.New(join(m.history)))
			})
			histories.requireSame(t, ranks)
		})
		if !passed {
			rt.Fatal("the program failed") // rapid then looks for a shorter one
		}
	})
}
