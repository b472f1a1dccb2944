package random

import (
	"context"

	"symmem"
)

// liveGroups is the maximum number of groups in a round.
const liveGroups = 4

// groups holds the groups of a round. The first is the world. Groups that this rank is not in are
// nil.
type groups struct {
	draws *draws
	world *symmem.Group
	tally *Tally
	all   []*symmem.Group
}

func newGroups(w *world, d *draws, t *Tally) *groups {
	g := w.rt.World()
	return &groups{draws: d, world: g, tally: t, all: []*symmem.Group{g}}
}

// splits lists the ways to split n ranks into groups. Each function returns a rank's color and key.
// A negative color means that the rank joins no group.
var splits = []func(rank, n, drawn int) (color, key int){
	func(rank, _, _ int) (color, key int) { return 0, rank },
	func(rank, n, _ int) (color, key int) { return 0, n - rank },
	func(rank, _, _ int) (color, key int) { return rank % 2, rank },
	func(rank, n, _ int) (color, key int) { return 2 * rank / n, -rank },
	func(rank, n, drawn int) (color, key int) {
		if n > 1 && rank == drawn%n {
			return -1, 0
		}
		return 7, rank
	},
}

// split creates a group of some or all ranks.
func (gs *groups) split(ctx context.Context) error {
	colorAndKey, drawn := choose(gs.draws, splits), gs.draws.IntN(1<<16)
	color, key := colorAndKey(gs.world.Rank(), gs.world.Size(), drawn)
	var g *symmem.Group
	var err error
	if color < 0 {
		err = gs.world.SkipSplit(ctx)
	} else {
		g, err = gs.world.Split(ctx, color, key)
	}
	if err != nil {
		return err
	}
	gs.all = append(gs.all, g)
	gs.tally.Groups++
	return nil
}

// index draws the index of a group.
func (gs *groups) index() int { return gs.draws.IntN(len(gs.all)) }

// pathChoices lists the path settings to draw from. Repeated settings are more likely. Wrong
// placements only have an effect on the window and direct paths. If a call cannot take the window
// or direct path, the setting has the effect of auto.
var pathChoices = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

// choosePath sets the path of a group.
func (gs *groups) choosePath(ctx context.Context) error {
	g, choice := choose(gs.draws, gs.all), choose(gs.draws, pathChoices)
	if g == nil {
		return nil
	}
	return g.SetPath(ctx, choice)
}
