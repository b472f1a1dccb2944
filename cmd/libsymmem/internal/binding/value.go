package binding

import (
	"context"
	"fmt"
	"math"

	"symmem"
)

// Number combines or compares the numbers that the ranks of a group pass under a name. operation
// and value mean the same as in struct symmem_value.
func (cs *calls) Number(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	op, err := parseEnum("operation", values, operation)
	if err != nil {
		return 0, err
	}
	if op == symmem.ValueStep {
		return 0, fmt.Errorf("operation %d on value %q: %w", operation, name, symmem.ErrInvalid)
	}
	return cs.Value(handle, symmem.ValueCall{
		Operation: op, Name: name, Value: value, Float: math.Float64frombits(uint64(value)),
	}, site)
}

// Value combines or compares the values that the ranks of a group pass.
//
// If the group is on one machine, the wait polls for interrupts as a collective does. If it spans
// machines, the call runs on another goroutine, which requires an allocation.
func (cs *calls) Value(handle uint64, c symmem.ValueCall, site uint32) (int64, error) {
	r, g, err := cs.s.group(handle)
	if err != nil {
		return 0, err
	}
	interop := r.at(site)
	if g.machines <= 1 {
		return interop.Value(context.Background(), g.Group, c)
	}
	return cs.valueInterruptible(interop, g, c)
}

func (cs *calls) valueInterruptible(
	i symmem.Interop, g *group, c symmem.ValueCall,
) (int64, error) {
	var got int64 // an abandoned call may still write it
	err := cs.s.runInterruptible("comparing values", func(ctx context.Context) (err error) {
		got, err = i.Value(ctx, g.Group, c)
		return err
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}
