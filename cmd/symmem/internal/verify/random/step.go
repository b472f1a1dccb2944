package random

import (
	"context"
	"math/rand/v2"
)

// step is a kind of step, and how often it is drawn.
type step struct {
	name   string
	weight int
	run    func(*round, context.Context) error
}

// steps are all kinds.
var steps = []step{
	{"allocating", 20, (*round).allocate},
	{"freeing", 14, func(r *round, _ context.Context) error { return r.free() }},
	{"allocating in a scope", 8, (*round).scope},
	{"allocating in a disabled scope", 2, (*round).disabled},
	{"a collective", 24, (*round).collective},
	{"collectives at once", 6, (*round).burst},
	{"capturing", 4, (*round).capture},
	{"replaying", 8, (*round).replay},
	{"replaying several graphs at once", 4, (*round).overlap},
	{"closing a graph", 2, (*round).closeGraph},
	{"splitting", 2, (*round).split},
	{"closing a group", 2, (*round).leave},
	{"choosing a path", 3, (*round).choosePath},
	{"aborting a group", 1, (*round).abort},
	{"breaking a group in replays", 1, (*round).breakReplays},
	{"reserving", 2, (*round).reserve},
	{"trimming", 2, (*round).trim},
	{"closing a pool", 1, (*round).renew},
	{"synchronizing", 3, func(r *round, ctx context.Context) error { return r.synchronize(ctx) }},
	{"comparing", 1, (*round).agree},
}

// drawStep draws a kind by weight.
func drawStep(draws *rand.Rand) *step {
	all := 0
	for i := range steps {
		all += steps[i].weight
	}
	at := draws.IntN(all)
	i := 0
	for ; at >= steps[i].weight; i++ {
		at -= steps[i].weight
	}
	return &steps[i]
}
