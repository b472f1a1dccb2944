package driver

import (
	"fmt"
	"slices"
	"strings"
)

// Formula selects the order in which reductions combine the ranks' elements, and thus every bit of
// the result.
type Formula uint8

// The formulas.
const (
	// AnyFormula leaves the order to the path of each call.
	AnyFormula Formula = iota
	// RankOrder combines the elements from left to right: ((x0 + x1) + x2) + x3. It accumulates
	// 16-bit floats in float32 and rounds once.
	RankOrder
	// Tree combines neighboring ranks, then neighboring pairs: (x0 + x1) + (x2 + x3). The number of
	// ranks must be a power of two. It accumulates like RankOrder.
	Tree
	// RoundedTree is like Tree, but rounds every partial sum of 16-bit floats to 16 bits.
	RoundedTree
	formulas = iota
)

var formulaNames = [formulas]string{"any", "ranks", "tree", "rounded-tree"}

// String returns the formula's name.
func (f Formula) String() string {
	if f < formulas {
		return formulaNames[f]
	}

	return "Formula(?)"
}

// Fits returns an error if the formula does not support groups of this size.
func (f Formula) Fits(ranks int) error {
	if (f == Tree || f == RoundedTree) && ranks&(ranks-1) != 0 {
		return fmt.Errorf("the reduction formula %v requires 2, 4, 8, ... ranks, but the group has %d",
			f, ranks)
	}

	return nil
}

// ParseFormula returns the formula whose String is name.
func ParseFormula(name string) (Formula, error) {
	if i := slices.Index(formulaNames[:], name); i >= 0 {
		return Formula(i), nil
	}

	return 0, fmt.Errorf("unknown formula of reductions %q: want one of %s", name,
		strings.Join(formulaNames[:], ", "))
}
