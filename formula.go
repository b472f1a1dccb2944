package symmem

import (
	"fmt"

	"symmem/driver"
)

// Formula defines what every reduction of a group computes, bit by bit, whatever the size, the
// memory and the path: docs/reference/deterministic.md.
type Formula int

// The formulas. Each but the first two makes reductions deterministic, and has what cannot be made
// so refused: see Options.Deterministic.
const (
	// FormulaDefault takes the value of SYMMEM_DETERMINISTIC, or else FormulaAny.
	FormulaDefault Formula = iota
	// FormulaAny leaves the order of additions to the path of each call.
	FormulaAny
	// FormulaRankOrder combines from left to right: ((x0 + x1) + x2) + x3. 16-bit floats accumulate in
	// float32 and are rounded once.
	FormulaRankOrder
	// FormulaTree combines neighbours, then pairs of them: (x0 + x1) + (x2 + x3). The number of ranks
	// is a power of two.
	FormulaTree
	// FormulaRoundedTree is FormulaTree in which every sum of 16-bit floats is rounded to their type.
	FormulaRoundedTree
)

// envDeterministic gives Options.Deterministic where a program leaves it out.
const envDeterministic = "SYMMEM_DETERMINISTIC"

// String returns the formula's name: default, any, ranks, tree or rounded-tree.
func (f Formula) String() string {
	switch {
	case f == FormulaDefault:
		return "default"
	case f < FormulaDefault || f > FormulaRoundedTree:
		return "Formula(?)"
	}
	return f.driver().String()
}

// ParseFormula reads a name as String writes it; 0 is FormulaAny, and 1 FormulaRankOrder.
func ParseFormula(name string) (Formula, error) {
	switch name {
	case "default":
		return FormulaDefault, nil
	case "0":
		return FormulaAny, nil
	case "1":
		return FormulaRankOrder, nil
	}
	f, err := driver.ParseFormula(name)
	if err != nil {
		return 0, invalid("%v, default, 0, 1", err)
	}
	return FormulaAny + Formula(f), nil
}

// driver returns the formula for backends. f is not FormulaDefault.
func (f Formula) driver() driver.Formula { return driver.Formula(f - FormulaAny) }

// computable refuses a formula that a group cannot compute: one that does not support its number of
// ranks, or for which no path of the backend takes the smallest sum. All ranks get the same answer.
func computable(f Formula, c driver.Communicator, ranks int) error {
	if f == FormulaAny || ranks == 1 {
		return nil
	}
	if err := f.driver().Fits(ranks); err != nil {
		return fmt.Errorf("%w (Options.Deterministic, %s): %w", err, envDeterministic, ErrUnsupported)
	}
	sum := c.Offer(driver.Call{Operation: driver.AllReduce, DataType: Float32, Count: 1})
	plain, direct := sum.Refusal(driver.PathPlain), sum.Refusal(driver.PathDirect)
	if plain == nil || direct == nil {
		return nil
	}
	return fmt.Errorf("the group cannot be deterministic (Options.Deterministic, %s): %w; "+
		"not direct: %w", envDeterministic, plain, direct)
}

// notDeterministic refuses what runs without symmem, where reductions are to be deterministic.
func (o *Options) notDeterministic(what string) error {
	if o.Deterministic == FormulaAny {
		return nil
	}
	return fmt.Errorf("%s: NCCL chooses the order of its reductions, and this rank was opened "+
		"with the formula %v (Options.Deterministic, %s): call the group of symmem instead, or open "+
		"without it: %w", what, o.Deterministic, envDeterministic, ErrUnsupported)
}
