package symmem

import (
	"fmt"

	"symmem/driver"
)

// Formula selects the order in which reductions combine the values of the ranks. The order affects
// rounding: in float32, (1e8 + -1e8) + 1 is 1, but 1e8 + (-1e8 + 1) is 0. With FormulaAny, the
// order depends on the size, memory and path (algorithm) of the call. FormulaRankOrder and the
// trees fix the order. See docs/reference/deterministic.md.
type Formula int

// The formulas. x0 to x3 are the values of ranks 0 to 3. A reduction that does not support the
// selected formula returns an error.
const (
	// FormulaDefault is the formula named by SYMMEM_DETERMINISTIC, or FormulaAny if that is not set.
	FormulaDefault Formula = iota
	// FormulaAny permits any order.
	FormulaAny
	// FormulaRankOrder combines from left to right: ((x0 + x1) + x2) + x3. As with FormulaTree, sums
	// of 16-bit floats are accumulated in float32 and rounded once.
	FormulaRankOrder
	// FormulaTree combines neighbors, then pairs of neighbors: (x0 + x1) + (x2 + x3). The number of
	// ranks must be a power of two.
	FormulaTree
	// FormulaRoundedTree is FormulaTree, but rounds every intermediate sum of 16-bit floats.
	FormulaRoundedTree
)

const envDeterministic = "SYMMEM_DETERMINISTIC"

// String returns default, any, ranks, tree or rounded-tree.
func (f Formula) String() string {
	switch {
	case f < FormulaDefault || f > FormulaRoundedTree:
		return "Formula(?)"
	case f == FormulaDefault:
		return "default"
	default:
		return f.toDriver().String()
	}
}

// ParseFormula converts a name that String returns to a Formula. It also accepts "0" for FormulaAny
// and "1" for FormulaRankOrder.
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
		return 0, invalid("%v, default, 0, 1", err) // err ends with a list of names
	}

	return FormulaAny + Formula(f), nil // the reverse of toDriver
}

// toDriver converts f, which must not be FormulaDefault: package driver has no default.
func (f Formula) toDriver() driver.Formula { return driver.Formula(f - FormulaAny) }

// checkFormula returns an error if the formula does not permit the number of ranks, or if comm
// cannot even compute a float32 sum with it. All ranks get the same result.
func checkFormula(f Formula, comm driver.Communicator, ranks int) error {
	if f == FormulaAny || ranks == 1 {
		return nil
	}

	if err := f.toDriver().Fits(ranks); err != nil {
		return fmt.Errorf("%w (Options.Deterministic, %s): %w", err, envDeterministic, ErrUnsupported)
	}

	sum := driver.Call{Operation: driver.AllReduce, DataType: Float32, Count: 1}
	offer := comm.Offer(sum)
	plainErr := offer.Refusal(driver.PathPlain)
	directErr := offer.Refusal(driver.PathDirect)
	if plainErr == nil || directErr == nil {
		return nil
	}

	return fmt.Errorf("the group cannot be deterministic (Options.Deterministic, %s): "+
		"plain path: %w; direct path: %w", envDeterministic, plainErr, directErr)
}

// rejectDeterministic returns an error for an operation of NCCL if the options select an order of
// reductions.
func (o *Options) rejectDeterministic(operation string) error {
	if o.Deterministic == FormulaAny {
		return nil
	}

	return fmt.Errorf("%s: NCCL chooses the order of its reductions, and this rank was opened "+
		"with the formula %v (Options.Deterministic, %s): use one of symmem's groups instead, or open "+
		"the rank without the formula: %w", operation, o.Deterministic, envDeterministic, ErrUnsupported)
}
