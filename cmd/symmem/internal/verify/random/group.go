package random

import (
	"context"

	"symmem"
)

// groups holds this rank's groups in a round. After a split into even and odd ranks:
//
//	        all[0]   all[1]
//	rank 0  world    ranks 0 and 2
//	rank 1  world    ranks 1 and 3
//
// All ranks draw the same index. Here, the index 1 means different groups.
type groups struct {
	choices            *choices      // the same on all ranks
	worldGroup         *symmem.Group // of all ranks
	tally              *Tally
	all                []*symmem.Group // an entry is nil if this rank joined no group in the split
	hasSeveralMachines bool
}

const maxGroups = 4 // limit of len(groups.all) in round.split

func newGroups(env *environment, choices *choices, tally *Tally) *groups {
	world := env.rt.World()
	return &groups{
		choices: choices, worldGroup: world, tally: tally, all: []*symmem.Group{world},
		hasSeveralMachines: env.machines() > 1,
	}
}

func (gs *groups) drawIndex() int { return gs.choices.IntN(len(gs.all)) }

// A splitRule returns a rank's color and key. Ranks with the same color form a group, in ascending
// order of their keys. drawn is a random number, the same on all ranks.
type splitRule func(rank, ranks, drawn int) (color, key int)

const noGroup = -1 // color of a rank that joins no group

var splitRules = []splitRule{allRanks, allReversed, evenAndOdd, reversedHalves, allButOne}

func allRanks(rank, _, _ int) (color, key int) { return 0, rank }

func allReversed(rank, _, _ int) (color, key int) { return 0, -rank }

func evenAndOdd(rank, _, _ int) (color, key int) { return rank % 2, rank }

func reversedHalves(rank, ranks, _ int) (color, key int) {
	half := 2 * rank / ranks // 0 or 1
	return half, -rank
}

func allButOne(rank, ranks, drawn int) (color, key int) {
	leftOutRank := drawn % ranks
	if rank == leftOutRank && ranks > 1 {
		return noGroup, 0
	}

	const arbitraryColor = 7
	return arbitraryColor, rank
}

// split splits the world in a random way and adds this rank's new group, or nil, to gs.all.
func (gs *groups) split(ctx context.Context) error {
	rule := choose(gs.choices, splitRules)
	drawn := gs.choices.IntN(1 << 16)
	color, key := rule(gs.worldGroup.Rank(), gs.worldGroup.Size(), drawn)
	g, err := gs.join(ctx, color, key)
	if err != nil {
		return err
	}

	gs.all = append(gs.all, g)
	gs.tally.Groups++
	return nil
}

// join returns the new group of the ranks with this color, or nil for noGroup.
func (gs *groups) join(ctx context.Context, color, key int) (*symmem.Group, error) {
	if color == noGroup {
		return nil, gs.worldGroup.SkipSplit(ctx)
	}

	return gs.worldGroup.Split(ctx, color, key)
}

// weightedPaths lists the window and direct paths twice, because only they fail if the placement of
// buffers differs between ranks.
var weightedPaths = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

// drawPath draws an implementation of collectives.
func (gs *groups) drawPath() symmem.PathChoice {
	if gs.hasSeveralMachines && gs.choices.isOneIn(2) {
		return symmem.PathTwoLevel
	}

	return choose(gs.choices, weightedPaths)
}

// setRandomPath sets a random path for a random group.
func (gs *groups) setRandomPath(ctx context.Context) error {
	g := choose(gs.choices, gs.all)
	path := gs.drawPath() // even if g is nil, so that all ranks draw the same
	if g == nil {
		return nil
	}

	return g.SetPath(ctx, path)
}
