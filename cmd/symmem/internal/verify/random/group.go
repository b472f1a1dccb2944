package random

import (
	"context"

	"symmem"
)

const maxGroups = 4 // limit of len(groups.all)

// groups holds the groups of a round, beginning with the world.
type groups struct {
	choices            *choices
	worldGroup         *symmem.Group
	tally              *Tally
	all                []*symmem.Group // nil for a group without this rank
	hasSeveralMachines bool
}

func newGroups(env *environment, d *choices, t *Tally) *groups {
	g := env.rt.World()
	return &groups{
		choices: d, worldGroup: g, tally: t, all: []*symmem.Group{g},
		hasSeveralMachines: env.machines() > 1,
	}
}

// splits lists ways to split the world of the given number of ranks. Each function returns a
// rank's color and key for Group.Split: ranks with the same color form a group, in the order of
// their keys. A rank with a negative color joins no group. random is the same on all ranks.
var splits = []func(rank, ranks, random int) (color, key int){
	// All ranks, in the same order as in the world or reversed.
	func(rank, _, _ int) (color, key int) { return 0, rank },
	func(rank, ranks, _ int) (color, key int) { return 0, ranks - rank },
	// Even and odd ranks.
	func(rank, _, _ int) (color, key int) { return rank % 2, rank },
	// The lower and the upper half of the ranks, reversed.
	func(rank, ranks, _ int) (color, key int) { return 2 * rank / ranks, -rank },
	// All ranks but one.
	func(rank, ranks, random int) (color, key int) {
		if ranks > 1 && rank == random%ranks {
			return -1, 0
		}
		return 7, rank
	},
}

// split splits the world in a random way, and adds this rank's new group.
func (gs *groups) split(ctx context.Context) error {
	colorAndKey := choose(gs.choices, splits)
	random := gs.choices.IntN(1 << 16)
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

// pathChoices lists the choices of drawPath. The window and direct paths are listed twice, because
// only they need correct placement.
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

// choosePath sets a random path for a random group. Ranks outside the group only draw.
func (gs *groups) choosePath(ctx context.Context) error {
	g := choose(gs.choices, gs.all)
	choice := gs.drawPath()
	if g == nil {
		return nil
	}
	return g.SetPath(ctx, choice)
}
