package random

import (
	"context"

	"symmem"
)

const liveGroups = 4

// groups holds the groups of a round. The first one is the world. A group that does not contain
// this rank is nil.
type groups struct {
	draws        *draws
	world        *symmem.Group
	tally        *Tally
	all          []*symmem.Group
	manyMachines bool
}

func newGroups(w *world, d *draws, t *Tally) *groups {
	g := w.rt.World()
	return &groups{
		draws: d, world: g, tally: t, all: []*symmem.Group{g}, manyMachines: w.machines() > 1,
	}
}

// splits lists ways to split n ranks into groups. Each function returns a rank's color and key
// for Group.Split. A rank with a negative color does not join any group.
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

func (gs *groups) index() int { return gs.draws.IntN(len(gs.all)) }

// pathChoices lists the path settings to draw from. Because wrong placement affects only the window
// and direct paths, they are listed twice, so that they are drawn more often. A call that cannot
// take the drawn path takes the path that PathAuto would select.
var pathChoices = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

// drawPath draws a path setting. In a world of several machines, half of the settings are
// PathTwoLevel.
func (gs *groups) drawPath() symmem.PathChoice {
	if gs.manyMachines && gs.draws.chance(2) {
		return symmem.PathTwoLevel
	}
	return choose(gs.draws, pathChoices)
}

func (gs *groups) choosePath(ctx context.Context) error {
	g, choice := choose(gs.draws, gs.all), gs.drawPath()
	if g == nil {
		return nil
	}
	return g.SetPath(ctx, choice)
}
