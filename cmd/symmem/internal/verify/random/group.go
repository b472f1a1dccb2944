package random

import (
	"context"

	"symmem"
)

const maxGroups = 4 // limit of len(groups.all)

// groups holds the groups of a round.
type groups struct {
	choices    *choices
	worldGroup *symmem.Group // the group of all ranks
	tally      *Tally
	// all begins with worldGroup. A later entry is this rank's group of a split, or nil if the rank
	// belongs to none. Entries with the same index may thus be different groups on different ranks.
	all                []*symmem.Group
	hasSeveralMachines bool
}

func newGroups(env *environment, choices *choices, tally *Tally) *groups {
	world := env.rt.World()
	return &groups{
		choices: choices, worldGroup: world, tally: tally, all: []*symmem.Group{world},
		hasSeveralMachines: env.machines() > 1,
	}
}

// noGroup is the color of a rank that joins no group.
const noGroup = -1

// splits lists ways to split the world. Each function returns a rank's color and key for
// Group.Split: ranks with the same color form a group, in the order of their keys. ranks is the
// number of all ranks. random is the same on all ranks.
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
		isLeftOut := rank == random%ranks
		if isLeftOut && ranks > 1 {
			return noGroup, 0
		}

		return 7, rank // any color that is not negative
	},
}

// split splits the world in a random way, and adds this rank's new group to gs.all.
func (gs *groups) split(ctx context.Context) error {
	colorAndKey := choose(gs.choices, splits)
	random := gs.choices.IntN(1 << 16)
	color, key := colorAndKey(gs.worldGroup.Rank(), gs.worldGroup.Size(), random)
	var g *symmem.Group // stays nil with noGroup
	var err error
	if color == noGroup {
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

// drawIndex draws an index of gs.all.
func (gs *groups) drawIndex() int { return gs.choices.IntN(len(gs.all)) }

// pathChoices lists the choices of drawPath. The window and direct paths are listed twice, because
// they rely on the placement of buffers, which must be the same on all ranks.
var pathChoices = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

// drawPath draws the path (the way in which data reach other ranks) for collectives of a group.
func (gs *groups) drawPath() symmem.PathChoice {
	if gs.hasSeveralMachines && gs.choices.isOneIn(2) {
		return symmem.PathTwoLevel
	}

	return choose(gs.choices, pathChoices)
}

// choosePath sets a random path for a random group.
func (gs *groups) choosePath(ctx context.Context) error {
	g := choose(gs.choices, gs.all)
	path := gs.drawPath() // on all ranks, so that their later choices stay the same
	if g == nil {
		return nil
	}

	return g.SetPath(ctx, path)
}
