package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

// erring describes programs of collectives and copies, with a mistake on one rank.
var erring = kind{
	each: 1, limit: 60 * time.Second,
	world: (*task).erringWorld,
	open:  openPlayer((*task).erring),
	show: func(t *task, number int) fmt.Stringer {
		p, _ := t.erring(number)
		return p
	},
	kills: func(t *task) bool {
		_, m := t.erring(t.First)
		return m.kind == killed || m.kind == killedSoon
	},
}

func (t *task) erringWorld() (ranks int, o symmem.Options) {
	p, m := t.erring(t.First)
	d := t.worldDraws()
	o = symmem.Options{
		// Without a mistake no rank may wait this long.
		Check: symmem.CheckEvery, Timeout: 30 * time.Second,
		Path: []symmem.PathChoice{
			symmem.PathAuto, symmem.PathWindow, symmem.PathPlain,
		}[d.IntN(3)],
		Scatter: uint64(d.IntN(2)) * (1 + d.Uint64N(1<<40)),
	}
	if m.kind != none {
		o.Timeout = 4 * time.Second
	}
	return p.ranks, o
}

// erringOps is the number of ops of a program, without records and waits.
const erringOps = 24

// erring draws a program and a mistake.
func (t *task) erring(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	ranks := 2 + d.IntN(3)
	colors := make([][]int, d.IntN(3))
	for i := range colors {
		for range ranks {
			colors[i] = append(colors[i], d.IntN(2))
		}
	}
	g := newGenerator(d, newLayout(ranks, colors...))
	g.p.register = g.IntN(2) == 0
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
	for range erringOps {
		g.drawOp()
	}
	return &g.p, drawMistake(d, &g.p, none, killed, killedSoon, aborts, otherCount, otherType, skips)
}

// TestErring runs programs in which one rank makes a mistake: it is killed, aborts a group, makes a
// call with another count or type, or leaves it out. Calls use the results of earlier ones, also of
// other streams and groups, without synchronization. Results without an error must be right, and
// work that depends on the failed call must report one.
func TestErring(t *testing.T) { erring.test(t, 24, task{Kind: "erring"}, nil) }
