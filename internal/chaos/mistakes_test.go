package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

var mistakes = kind{
	programsPerWorld: 1, timeLimit: 60 * time.Second,
	drawWorld:     (*task).mistakesWorld,
	openPerformer: openPlayer((*task).mistakes),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.mistakes(number)
		return p
	},
	isRankKilled: func(t *task) bool {
		_, m := t.mistakes(t.First)
		return m.kind == killNow || m.kind == killLater
	},
}

func (t *task) mistakesWorld() (ranks int, o symmem.Options) {
	p, m := t.mistakes(t.First)
	d := t.worldDraws()
	o = symmem.Options{
		// no correct program waits this long
		Check: symmem.CheckEvery, Timeout: 30 * time.Second,
		Path: []symmem.PathChoice{
			symmem.PathAuto, symmem.PathWindow, symmem.PathPlain,
		}[d.IntN(3)],
		Scatter: uint64(d.IntN(2)) * (1 + d.Uint64N(1<<40)),
	}
	if m.kind != noMistake {
		o.Timeout = 4 * time.Second
	}
	return p.ranks, o
}

const mistakesOps = 24

func (t *task) mistakes(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	ranks := 2 + d.IntN(3)
	colors := make([][]int, d.IntN(3))
	for i := range colors {
		for range ranks {
			colors[i] = append(colors[i], d.IntN(2))
		}
	}
	g := newGenerator(d, newLayout(ranks, colors...))
	g.p.shouldRegisterPool = g.IntN(2) == 0
	elements := 12 * []int{1, 10, 300, 4000}[g.IntN(4)]
	buffers := 4 + g.IntN(5)
	foreign := buffers - g.IntN(3)
	for b := range buffers {
		g.buffer(4*elements, b >= foreign)
	}
	for i, members := range g.p.groups {
		if len(members) > 1 {
			g.groups = append(g.groups, i)
		}
	}
	for range g.IntN(3) {
		g.drawGraph(false)
	}
	for range mistakesOps {
		g.drawOp()
	}
	return &g.p, drawMistake(d, &g.p,
		noMistake, killNow, killLater, abortNow, wrongCount, wrongType, skipCall)
}

// One rank may make a mistake: it is killed, aborts a group, passes a different count or type to a
// call, or skips a call. Calls use the results of earlier calls on any stream and in any group,
// without synchronization. Every result without an error must be correct, and work that depends on
// the failed call must report an error.
func TestMistakes(t *testing.T) { mistakes.test(t, 24, task{Kind: "mistakes"}, nil) }
