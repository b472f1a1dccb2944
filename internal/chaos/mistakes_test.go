package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

// mistakes is the kind of programs in which a rank may make a mistake, for example in an AllReduce.
// Later calls use the results of earlier ones on other streams. So an AllGather that sends the
// output of the failed AllReduce has to report an error, too.
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

// mistakesWorld draws the job of a single program.
func (t *task) mistakesWorld() (ranks int, o symmem.Options) {
	p, m := t.mistakes(t.First)
	d := t.worldDraws()
	paths := []symmem.PathChoice{symmem.PathAuto, symmem.PathWindow, symmem.PathPlain}
	path := paths[d.IntN(len(paths))]
	shouldScatter := d.IntN(2) == 1
	scatterSeed := 1 + d.Uint64N(1<<40)
	o = symmem.Options{
		Check:   symmem.CheckEvery,
		Timeout: 30 * time.Second, // longer than any wait without a mistake
		Path:    path,
	}
	if shouldScatter {
		o.Scatter = scatterSeed
	}

	if m.kind != noMistake {
		o.Timeout = 4 * time.Second // short, because ranks may wait for it to expire
	}

	return p.ranks, o
}

// mistakes draws a program and its mistake.
func (t *task) mistakes(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	ranks := 2 + d.IntN(3)
	colors := make([][]int, d.IntN(3)) // by split and rank; each color of a split is a group
	for i := range colors {
		for range ranks {
			colors[i] = append(colors[i], d.IntN(2))
		}
	}

	g := newGenerator(d, newLayout(ranks, colors...))
	g.p.shouldRegisterPool = g.IntN(2) == 0
	const divisor = 12 // a multiple of any number of ranks
	elements := divisor * []int{1, 10, 300, 4000}[g.IntN(4)]
	bufferBytes := 4 * elements
	bufferCount := 4 + g.IntN(5)
	pooledCount := bufferCount - g.IntN(3) // the other buffers are outside the pool
	for b := range bufferCount {
		isForeign := b >= pooledCount
		g.buffer(bufferBytes, isForeign)
	}

	for i, members := range g.p.groups {
		hasPeers := len(members) > 1
		if hasPeers {
			g.groups = append(g.groups, i)
		}
	}

	const capturedByOp = false // capture the graphs before the first op
	for range g.IntN(3) {
		g.drawGraph(capturedByOp)
	}

	const opCount = 24 // does not include the event ops that order the others
	for range opCount {
		g.drawOp()
	}

	return &g.p, drawMistake(d, &g.p,
		noMistake, killNow, killLater, abortNow, wrongCount, wrongType, skipCall)
}

// Every result without an error is correct, and work that depends on a failed call reports an
// error.
func TestMistakes(t *testing.T) {
	const defaultPrograms = 24
	mistakes.test(t, defaultPrograms, task{Kind: "mistakes"}, nil)
}
