package driver

import (
	"fmt"
	"slices"
	"strings"
)

// Formula says in which order reductions of a group combine the ranks, bit by bit.
type Formula uint8

// The formulas. Every rank of a group has the same.
const (
	// AnyFormula leaves the order to the path of each call.
	AnyFormula Formula = iota
	// RankOrder combines from left to right: ((x0 + x1) + x2) + x3. 16-bit floats accumulate in
	// float32, all other types in their own, and the result is rounded once.
	RankOrder
	// Tree combines neighbours, then pairs of them: (x0 + x1) + (x2 + x3). The number of ranks is a
	// power of two. Types accumulate as in RankOrder.
	Tree
	// RoundedTree is Tree, but each sum of a 16-bit float is rounded to its type.
	RoundedTree
	formulas = iota // the number of formulas
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
		return fmt.Errorf("the formula %v of reductions is for 2, 4, 8, ... ranks, and the group has %d",
			f, ranks)
	}
	return nil
}

// ParseFormula reads a name as String writes it.
func ParseFormula(name string) (Formula, error) {
	if i := slices.Index(formulaNames[:], name); i >= 0 {
		return Formula(i), nil
	}
	return 0, fmt.Errorf("unknown formula of reductions %q: one of %s", name,
		strings.Join(formulaNames[:], ", "))
}
