package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

// A program of this kind consists of collectives, copies and launches of graphs, on three streams.
// Suppose that it has an AllReduce from buffer 0 to buffer 1, then an AllGather from buffer 1 to
// buffer 2. If rank 1 makes a mistake in the AllReduce, the sums in buffer 1 are wrong. Then the
// stream of the AllGather must report an error, too, because buffer 2 depends on the sums. A world
// is a job of several ranks, which performs only one of these programs.

// mistakes is the kind of programs in which a rank may make a mistake.
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

// mistakesWorld draws a world, which runs a single program.
func (t *task) mistakesWorld() (ranks int, o symmem.Options) {
	const (
		correctTimeout = 30 * time.Second // longer than any wait without a mistake
		mistakeTimeout = 4 * time.Second  // short, because ranks may wait for it
	)
	p, m := t.mistakes(t.First)
	d := t.worldDraws()
	paths := []symmem.PathChoice{symmem.PathAuto, symmem.PathWindow, symmem.PathPlain}
	path := paths[d.IntN(len(paths))]
	isScattered := uint64(d.IntN(2)) // 0 or 1
	seed := 1 + d.Uint64N(1<<40)
	o = symmem.Options{
		Check:   symmem.CheckEvery,
		Timeout: correctTimeout,
		Path:    path,
		Scatter: isScattered * seed, // addresses of segments are random unless this is 0
	}
	if m.kind != noMistake {
		o.Timeout = mistakeTimeout
	}

	return p.ranks, o
}

// mistakes draws a program and its mistake.
func (t *task) mistakes(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	ranks := 2 + d.IntN(3)
	colors := make([][]int, d.IntN(3)) // see layout.colors
	for i := range colors {
		for range ranks {
			colors[i] = append(colors[i], d.IntN(2))
		}
	}

	g := newGenerator(d, newLayout(ranks, colors...))
	g.p.shouldRegisterPool = g.IntN(2) == 0
	const divisor = 12 // a multiple of the number of ranks, which is 2, 3 or 4
	elements := divisor * []int{1, 10, 300, 4000}[g.IntN(4)]
	bufferBytes := 4 * elements
	bufferCount := 4 + g.IntN(5)
	firstForeign := bufferCount - g.IntN(3) // the last buffers are outside the pool
	for b := range bufferCount {
		isForeign := b >= firstForeign
		g.buffer(bufferBytes, isForeign)
	}

	for i, members := range g.p.groups {
		if len(members) > 1 { // a rank alone in its group does not wait for others
			g.groups = append(g.groups, i)
		}
	}

	const capturedByOp = false // capture the graphs before the first op
	for range g.IntN(3) {
		g.drawGraph(capturedByOp)
	}

	const opCount = 24 // without the waits that order them
	for range opCount {
		g.drawOp()
	}

	return &g.p, drawMistake(d, &g.p,
		noMistake, killNow, killLater, abortNow, wrongCount, wrongType, skipCall)
}

// TestMistakes runs programs in which one rank may make a mistake: it is killed, aborts a group,
// passes a different count or type to a call, or skips a call. Calls use the results of earlier
// calls on any stream and in any group, without synchronization. Every result without an error
// must be correct, and work that depends on the failed call must report an error.
func TestMistakes(t *testing.T) {
	const defaultPrograms = 24
	mistakes.test(t, defaultPrograms, task{Kind: "mistakes"}, nil)
}
