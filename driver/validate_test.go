package driver

import (
	"errors"
	"math"
	"testing"
)

// callOf is a sum of 1024 numbers from one buffer into another.
func callOf(change func(*Call)) Call {
	c := Call{
		Operation: AllReduce, DataType: Float32, Count: 1024, Send: 1 << 20, Recv: 2 << 20,
	}
	change(&c)
	return c
}

// normOf is a norm of 2 rows of 64.
func normOf(change func(*Call)) Call {
	return callOf(func(c *Call) {
		c.Operation, c.DataType, c.Count = AllReduceRMSNorm, BFloat16, 128
		c.Norm = &Norm{Rows: 2, Hidden: 64, Epsilon: 1e-5, Residual: 3 << 20, Weight: 4 << 20}
		change(c)
	})
}

// unevenOf is an AllToAllV of two ranks.
func unevenOf(change func(*Call)) Call {
	return callOf(func(c *Call) {
		c.Operation, c.Count = AllToAllV, 0
		c.Splits = &Splits{
			SendCounts: []int64{1, 2}, SendOffsets: []int64{0, 1},
			RecvCounts: []int64{1, 3}, RecvOffsets: []int64{0, 1},
		}
		change(c)
	})
}

// TestCallsThatNoBackendCouldDoAreRefused asks as rank 1 of 2.
func TestCallsThatNoBackendCouldDoAreRefused(t *testing.T) {
	for name, c := range map[string]Call{
		"unknown operation": callOf(func(c *Call) { c.Operation = 200 }),
		"unknown type":      callOf(func(c *Call) { c.DataType = 200 }),
		"unknown reduction": callOf(func(c *Call) { c.ReduceOp = 200 }),
		"bits of floats":    callOf(func(c *Call) { c.ReduceOp = BAnd }),
		"negative count":    callOf(func(c *Call) { c.Count = -1 }),
		"root below":        callOf(func(c *Call) { c.Operation, c.Root = Broadcast, -1 }),
		"root above":        callOf(func(c *Call) { c.Operation, c.Root = Broadcast, 2 }),
		"peer above":        callOf(func(c *Call) { c.Operation, c.Root = Send, 2 }),
		"message to itself": callOf(func(c *Call) { c.Operation, c.Root = Send, 1 }),
		"sent to anybody":   callOf(func(c *Call) { c.Operation, c.Root = Send, AnySource }),
		"negative tag":      callOf(func(c *Call) { c.Operation, c.Tag = Recv, -1 }),
		"large tag":         callOf(func(c *Call) { c.Operation, c.Tag = Recv, MaxTag+1 }),
		"tag of a sum":      callOf(func(c *Call) { c.Tag = 1 }),
		"arrival of a sum":  callOf(func(c *Call) { c.Arrived = func(int) {} }),
		"overlap":           callOf(func(c *Call) { c.Recv = c.Send + 4 }),
		"another's part in place": callOf(func(c *Call) {
			c.Operation, c.Send = AllGather, c.Recv
		}),
		"splits of a sum":   unevenOf(func(c *Call) { c.Operation = AllReduce }),
		"no splits":         unevenOf(func(c *Call) { c.Splits = nil }),
		"splits and count":  unevenOf(func(c *Call) { c.Count = 1 }),
		"too many counts":   unevenOf(func(c *Call) { c.Splits.RecvCounts = make([]int64, 9) }),
		"negative part":     unevenOf(func(c *Call) { c.Splits.SendCounts[0] = -1 }),
		"absurd offset":     unevenOf(func(c *Call) { c.Splits.RecvOffsets[1] = 1 << 60 }),
		"no norm":           normOf(func(c *Call) { c.Norm = nil }),
		"norm of a sum":     normOf(func(c *Call) { c.Operation = AllReduce }),
		"norm of floats":    normOf(func(c *Call) { c.DataType = Float32 }),
		"no whole vectors":  normOf(func(c *Call) { c.Norm.Hidden, c.Count = 60, 120 }),
		"rows of nothing":   normOf(func(c *Call) { c.Norm.Hidden, c.Count = 0, 0 }),
		"too long rows":     normOf(func(c *Call) { c.Norm.Hidden, c.Count = 1<<15, 1<<16 }),
		"rows that overrun": normOf(func(c *Call) { c.Norm.Rows, c.Count = 1<<58, 0 }),
		"fewer than no row": normOf(func(c *Call) { c.Norm.Rows = -1 }),
		"another count":     normOf(func(c *Call) { c.Count = 64 }),
		"epsilon":           normOf(func(c *Call) { c.Norm.Epsilon = float32(math.NaN()) }),
		"negative epsilon":  normOf(func(c *Call) { c.Norm.Epsilon = -1 }),
		"odd residual":      normOf(func(c *Call) { c.Norm.Residual += 8 }),
		"residual is input": normOf(func(c *Call) { c.Norm.Residual = c.Send }),
		"weight in output":  normOf(func(c *Call) { c.Norm.Weight = c.Recv + 16 }),
		"weight is residual": normOf(func(c *Call) {
			c.Norm.Weight = c.Norm.Residual
		}),
	} {
		if err := c.Validate(2, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	large := callOf(func(c *Call) { c.Count = math.MaxInt64 })
	if err := large.Validate(2, 1); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("a count without bound: got %v, want ErrOutOfRange", err)
	}
}

// TestCallsOnTheEdgeAreRight asks as rank 1 of 2.
func TestCallsOnTheEdgeAreRight(t *testing.T) {
	for name, c := range map[string]Call{
		"the largest count":     callOf(func(c *Call) { c.Send, c.Count = c.Recv, MaxCount }),
		"a message to rank 0":   callOf(func(c *Call) { c.Operation, c.Tag = Send, MaxTag }),
		"one from anybody":      callOf(func(c *Call) { c.Operation, c.Root = Recv, AnySource }),
		"in place":              callOf(func(c *Call) { c.Recv = c.Send }),
		"its own part in place": callOf(func(c *Call) { c.Operation, c.Send = AllGather, c.Recv+4096 }),
		"one behind the other":  callOf(func(c *Call) { c.Recv = c.Send + 4096 }),
		"nothing, anywhere":     callOf(func(c *Call) { c.Recv, c.Count = c.Send+4, 0 }),
		"a norm":                normOf(func(*Call) {}),
		"a norm in place":       normOf(func(c *Call) { c.Recv = c.Send }),
		"no rows, anywhere":     normOf(func(c *Call) { c.Norm.Rows, c.Count, c.Send = 0, 0, 1 }),
		"uneven parts":          unevenOf(func(*Call) {}),
	} {
		if err := c.Validate(2, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryOperationHasTraits fails for an operation without a row in the table.
func TestEveryOperationHasTraits(t *testing.T) {
	for o := range Operation(Operations) {
		if row := operationTraits[o]; row.name == "" || len(row.paths) == 0 {
			t.Errorf("operation %d: %+v", o, row)
		}
	}
	if got := Operation(Operations).String(); got != "Operation(?)" ||
		Operation(Operations).Takes(PathPlain) {
		t.Errorf("an operation that does not exist is %s", got)
	}
}
