package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

// mistakes describes programs in which a rank may make a mistake, for example in an AllReduce. Then
// calls on other streams that use the result of the AllReduce have to report an error, too.
var mistakes = kind{
	programsPerWorld: 1, timeLimit: 60 * time.Second,
	drawWorld:     (*task).drawMistakesWorld,
	openPerformer: openPlayer((*task).drawMistakes),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.drawMistakes(number)
		return p
	},
	isRankKilled: func(t *task) bool {
		_, m := t.drawMistakes(t.First)
		return m.kind == killNow || m.kind == killLater
	},
}

// drawMistakesWorld draws the world of a single program.
func (t *task) drawMistakesWorld() (ranks int, o symmem.Options) {
	p, m := t.drawMistakes(t.First)
	const (
		normalTimeout  = 30 * time.Second // longer than any wait without a mistake
		mistakeTimeout = 4 * time.Second  // short, because ranks may wait for it to expire
	)
	o.Check = symmem.CheckEvery
	o.Timeout = normalTimeout
	if m.kind != noMistake {
		o.Timeout = mistakeTimeout
	}

	d := t.worldDraws()
	paths := []symmem.PathChoice{symmem.PathAuto, symmem.PathWindow, symmem.PathPlain}
	o.Path = paths[d.IntN(len(paths))]
	shouldScatter := d.IntN(2) == 1
	if shouldScatter {
		o.Scatter = 1 + d.Uint64N(1<<40) // seed for random addresses of memory
	}

	return p.ranks, o
}

// drawMistakes draws a program and its mistake.
func (t *task) drawMistakes(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	ranks := 2 + d.IntN(3)
	// A split divides the ranks into two groups, which have the colors 0 and 1.
	colors := make([][]int, d.IntN(3)) // by split and rank
	for split := range colors {
		for range ranks {
			colors[split] = append(colors[split], d.IntN(2))
		}
	}

	g := newGenerator(d, newLayout(ranks, colors...))
	g.p.shouldRegisterPool = g.IntN(2) == 0
	const divisor = 12 // so that 2, 3 or 4 ranks get equal parts
	quotients := []int{1, 10, 300, 4000}
	elements := divisor * quotients[g.IntN(len(quotients))]
	const elementBytes = 4
	bufferBytes := elementBytes * elements
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

	const capturedByOp = false // capture all graphs before the first op
	for range g.IntN(3) {
		g.drawGraph(capturedByOp)
	}

	const opCount = 24 // excludes the event ops that drawOp adds
	for range opCount {
		g.drawOp()
	}

	return &g.p, drawMistake(d, &g.p,
		noMistake, killNow, killLater, abortNow, wrongCount, wrongType, skipCall)
}

// Results are correct unless symmem reports an error, and work that depends on a failed call fails.
func TestMistakes(t *testing.T) {
	const defaultPrograms = 24
	mistakes.test(t, defaultPrograms, task{Kind: "mistakes"}, nil)
}
