package symmem

import (
	"context"
	"fmt"
)

// SetCheck changes the level at which ranks compare, for all groups. It is collective over the
// world, and every rank gives the same level, in the same place among the collectives of each
// group. What was not compared before stays so until the next comparison of histories.
func (rt *Runtime) SetCheck(ctx context.Context, l CheckLevel) error {
	if l <= CheckDefault || l > CheckEvery {
		return invalid("check level %d", l)
	}
	g := rt.world
	g.mu.Lock()
	err := g.agree(ctx, "check level "+l.String())
	g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("setting the check level: %w", err)
	}
	rt.level.Store(int32(l))
	for _, g := range rt.allGroups() {
		g.comm.SetCheck(l == CheckEvery)
		g.startPatrol()
	}
	return nil
}

// startPatrol begins the comparison in the background where the level asks for it. Once begun it
// goes on, since ranks take turns in it, and what it finds is acted on unless the level is
// CheckOff.
func (g *Group) startPatrol() {
	if g.rt.Check() != CheckRegistration || g.rt.opts.CheckInterval <= 0 || len(g.ranks) < 2 {
		return
	}
	g.state.Lock()
	defer g.state.Unlock()
	if !g.patrolling && g.Err() == nil {
		g.patrolling = true
		g.background.Go(g.patrol)
	}
}
