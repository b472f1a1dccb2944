package symmem_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"symmem"
)

// All ranks run the same random steps. Each buffer gets the same segment and offset on all ranks,
// although the addresses of segments differ.

type step struct {
	kind   stepKind
	choice int   // selects a live buffer, a group, or the number of colors in stepSplit
	bytes  int64 // to allocate, or to keep mapped in stepTrim
}

type stepKind int

const (
	stepAlloc stepKind = iota
	stepFree
	stepScope // allocate memory that the scope registers with a group
	stepSum
	stepGather
	stepSplit // split the world
	stepTrim  // unmap segments without buffers

	lastStepKind = stepTrim
)

func drawProgram(rt *rapid.T) []step {
	const maxSteps = 40
	const maxBytes = 3 * mib // less than the first segment
	steps := rapid.Custom(func(rt *rapid.T) step {
		return step{
			kind:   stepKind(rapid.IntRange(0, int(lastStepKind)).Draw(rt, "kind")),
			choice: rapid.IntRange(0, 1000).Draw(rt, "choice"),
			bytes:  rapid.Int64Range(1, maxBytes).Draw(rt, "bytes"),
		}
	})
	return rapid.SliceOfN(steps, 1, maxSteps).Draw(rt, "program")
}

type programState struct {
	*rank
	pool    *symmem.Pool
	live    []symmem.Buffer
	groups  []*symmem.Group // the world and the results of stepSplit
	history []string        // the steps, and the places of the buffers of collectives
}

func (p *programState) run(s step) {
	p.history = append(p.history, fmt.Sprintf("%+v", s))
	switch s.kind {
	case stepAlloc:
		p.live = append(p.live, p.alloc(p.pool, s.bytes))
	case stepFree:
		p.free(s.choice)
	case stepScope:
		g := p.groups[s.choice%len(p.groups)]
		p.ok(p.pool.With(p.ctx, g, func(scope *symmem.Scope) error {
			b, err := scope.Alloc(s.bytes)
			p.live = append(p.live, b)
			return err
		}))
	case stepSum, stepGather:
		p.runCollective(s)
	case stepSplit:
		colors := 1 + s.choice%3
		color := p.Rank() % colors
		p.groups = append(p.groups, p.split(p.World(), color))
	case stepTrim:
		p.ok(p.pool.Trim(p.ctx, s.bytes))
	}
}

func (p *programState) free(choice int) {
	if len(p.live) == 0 {
		return
	}

	i := choice % len(p.live)
	p.ok(p.live[i].Free())
	p.live = append(p.live[:i], p.live[i+1:]...)
}

func (p *programState) runCollective(s step) {
	if len(p.live) == 0 {
		return
	}

	b := p.live[s.choice%len(p.live)]
	g := p.groups[s.choice%len(p.groups)]
	p.history = append(p.history, place(b))
	if s.kind == stepSum {
		p.checkSum(g, b)
	} else {
		p.checkGather(g, b, s)
	}
}

// checkGather gathers one part of each rank in place. Each rank first fills b with its number.
func (p *programState) checkGather(g *symmem.Group, b symmem.Buffer, s step) {
	const elementBytes = 4
	partElements := b.Size() / elementBytes / int64(g.Size())
	partBytes := partElements * elementBytes
	part, err := b.Memory().Slice(int64(g.Rank())*partBytes, partBytes)
	p.ok(err)
	p.fill(b, float32(g.Rank()))
	p.ok(g.AllGather(p.ctx, part, b.Memory(), partElements, symmem.Float32, nil))
	p.synchronize()
	gathered := p.floats(b)[:partElements*int64(g.Size())]
	for i, got := range gathered {
		contributor := int64(i) / partElements
		want := float32(contributor)
		if got != want {
			p.failf("%+v: element %d = %v, want %v", s, i, got, want)
		}
	}
}

func TestRandomPrograms(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(2, 4).Draw(rt, "ranks")
		program := drawProgram(rt)
		options := symmem.Options{
			Scatter: rapid.Uint64Range(1, 1<<32).Draw(rt, "scatter"), Timeout: 20 * time.Second,
		}
		var histories errorTexts
		// runRanks needs a *testing.T.
		passed := t.Run("", func(t *testing.T) {
			runRanks(t, ranks, options, func(r *rank) {
				state := &programState{rank: r, pool: r.pool(), groups: []*symmem.Group{r.World()}}
				for _, s := range program {
					state.run(s)
				}

				r.ok(r.World().Check(r.ctx))
				histories.addText(r, join(state.history))
			})
			histories.requireSame(t, ranks)
		})
		if !passed {
			rt.Fatal("the program failed") // makes rapid look for a shorter program
		}
	})
}
