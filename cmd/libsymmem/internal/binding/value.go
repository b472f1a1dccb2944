package binding

import (
	"context"
	"fmt"
	"math"

	"symmem"
)

// valueCalls implements the functions in symmem.h that combine or compare values.
type valueCalls struct{ session *session }

// CombineNumber combines or compares the numbers that the ranks of a group pass under a name. See
// struct symmem_value for the operations.
func (vs *valueCalls) CombineNumber(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	op, err := parseEnum("operation", values, operation)
	if err != nil {
		return 0, err
	}

	if op == symmem.ValueStep {
		return 0, fmt.Errorf("operation %d on value %q: %w", operation, name, symmem.ErrInvalid)
	}

	return vs.CombineValue(handle, symmem.ValueCall{
		Operation: op, Name: name, Value: value, Float: math.Float64frombits(uint64(value)),
	}, site)
}

// CombineValue combines or compares the values that the ranks of a group pass.
func (vs *valueCalls) CombineValue(
	handle uint64, call symmem.ValueCall, site uint32,
) (int64, error) {
	r, g, err := vs.session.group(handle)
	if err != nil {
		return 0, err
	}

	interop := r.interopAt(site)
	if g.machines <= 1 { // within a machine, the wait calls pollInCollective
		return interop.Value(context.Background(), g.Group, call)
	}

	return vs.combineInterruptible(interop, g, call)
}

// combineInterruptible combines values of ranks on several machines. The caller can interrupt the
// wait for the other ranks.
func (vs *valueCalls) combineInterruptible(
	interop symmem.Interop, g *group, call symmem.ValueCall,
) (int64, error) {
	combine := func(ctx context.Context) (int64, error) { return interop.Value(ctx, g.Group, call) }
	return getInterruptible(&vs.session.interrupts, "comparing values", combine)
}
