package random

import (
	"context"
	"fmt"
	"strings"
)

// step is a kind of step. The probability of drawing it is proportional to weight.
type step struct {
	name   string // for error texts
	weight int
	run    func(*round, context.Context) error
}

// errorAt adds the number of the step to an error. It also adds the step's name, unless the error
// begins with the name.
func (s *step) errorAt(number int, err error) error {
	if strings.HasPrefix(err.Error(), s.name+": ") {
		return fmt.Errorf("step %d, %w", number, err)
	}

	return fmt.Errorf("step %d, %s: %w", number, s.name, err)
}

var steps = []step{
	{"allocating", 20, func(r *round, _ context.Context) error { return r.buffers.allocateOrFree() }},
	{"freeing", 14, func(r *round, _ context.Context) error { return r.buffers.freeRandom() }},
	{"allocating in a scope", 8, (*round).allocateInScope},
	{"allocating in a disabled scope", 2, (*round).allocateDisabled},
	{"a collective", 24, func(r *round, ctx context.Context) error {
		return r.calls.runCollective(ctx)
	}},
	{"concurrent collectives", 6, func(r *round, ctx context.Context) error {
		return r.calls.runConcurrently(ctx)
	}},
	{"a norm", 4, (*round).runNorm},
	{"capturing", 4, func(r *round, ctx context.Context) error { return r.graphs.capture(ctx) }},
	{"replaying", 8, func(r *round, ctx context.Context) error { return r.graphs.replay(ctx) }},
	{"replaying several graphs", 4, func(r *round, ctx context.Context) error {
		return r.graphs.replayConcurrently(ctx)
	}},
	{"closing a graph", 2, func(r *round, ctx context.Context) error {
		return r.graphs.closeOne(ctx)
	}},
	{"splitting a group", 2, (*round).split},
	{"closing a group", 2, (*round).closeAnyGroup},
	{"choosing a path", 3, func(r *round, ctx context.Context) error {
		return r.groups.setRandomPath(ctx)
	}},
	{"aborting a group", 1, (*round).abort},
	{"making a group fail in a replay", 1, (*round).failInReplay},
	{"reserving memory", 2, (*round).reserve},
	{"trimming a pool", 2, (*round).trim},
	{"suspending a pool", 1, (*round).suspend},
	{"replacing a pool", 1, (*round).replacePool},
	{"synchronizing", 3, func(r *round, ctx context.Context) error { return r.env.synchronize(ctx) }},
	{"comparing histories", 1, (*round).compareHistories},
}

// drawStep draws a number below the sum of the weights, and returns the step at that place.
func drawStep(choices *choices) *step {
	sum := 0
	for i := range steps {
		sum += steps[i].weight
	}

	remainder := choices.IntN(sum)
	i := 0
	for ; remainder >= steps[i].weight; i++ {
		remainder -= steps[i].weight
	}

	return &steps[i]
}
