package random

import (
	"context"

	"symmem"
)

const maxGroups = 4

// groups holds the groups of a round, beginning with the world. A group without this rank is nil.
type groups struct {
	choices            *choices
	worldGroup         *symmem.Group
	tally              *Tally
	all                []*symmem.Group
	hasSeveralMachines bool
}

func newGroups(env *environment, d *choices, t *Tally) *groups {
	g := env.rt.World()
	return &groups{
		choices: d, worldGroup: g, tally: t, all: []*symmem.Group{g},
		hasSeveralMachines: env.machines() > 1,
	}
}

// Each function in splits returns a rank's color and key for Group.Split. A rank with a negative
// color joins no group.
var splits = []func(rank, ranks, random int) (color, key int){
	func(rank, _, _ int) (color, key int) { return 0, rank },
	func(rank, ranks, _ int) (color, key int) { return 0, ranks - rank },
	func(rank, _, _ int) (color, key int) { return rank % 2, rank },
	func(rank, ranks, _ int) (color, key int) { return 2 * rank / ranks, -rank },
	func(rank, ranks, random int) (color, key int) {
		if ranks > 1 && rank == random%ranks {
			return -1, 0
		}
		return 7, rank
	},
}

func (gs *groups) split(ctx context.Context) error {
	colorAndKey, random := choose(gs.choices, splits), gs.choices.IntN(1<<16)
	color, key := colorAndKey(gs.worldGroup.Rank(), gs.worldGroup.Size(), random)
	var g *symmem.Group
	var err error
	if color < 0 {
		err = gs.worldGroup.SkipSplit(ctx)
	} else {
		g, err = gs.worldGroup.Split(ctx, color, key)
	}
	if err != nil {
		return err
	}
	gs.all = append(gs.all, g)
	gs.tally.Groups++
	return nil
}

func (gs *groups) drawIndex() int { return gs.choices.IntN(len(gs.all)) }

// Only the window and direct paths need correct placement, so they are listed twice.
var pathChoices = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

func (gs *groups) drawPath() symmem.PathChoice {
	if gs.hasSeveralMachines && gs.choices.isOneIn(2) {
		return symmem.PathTwoLevel
	}
	return choose(gs.choices, pathChoices)
}

func (gs *groups) choosePath(ctx context.Context) error {
	g, choice := choose(gs.choices, gs.all), gs.drawPath()
	if g == nil {
		return nil
	}
	return g.SetPath(ctx, choice)
}
