package driver

import (
	"errors"
	"math"
	"testing"
)

// allReduce returns a valid AllReduce of 4096 bytes, as modified by change.
func allReduce(change func(*Call)) Call {
	c := Call{
		Operation: AllReduce, DataType: Float32, Count: 1024, Send: 1 << 20, Recv: 2 << 20,
	}
	change(&c)
	return c
}

func premulSum(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.ReduceOp, c.Factor = PremulSum, 0.5
		change(c)
	})
}

// norm returns a valid AllReduceRMSNorm of 2 rows of 64 elements, as modified by change.
func norm(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.Operation, c.DataType, c.Count = AllReduceRMSNorm, BFloat16, 128
		c.Norm = &Norm{Rows: 2, Hidden: 64, Epsilon: 1e-5, Residual: 3 << 20, Weight: 4 << 20}
		change(c)
	})
}

// allToAllV returns a valid AllToAllV of two ranks, as modified by change.
func allToAllV(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.Operation, c.Count = AllToAllV, 0
		c.Splits = &Splits{
			SendCounts: []int64{1, 2}, SendOffsets: []int64{0, 1},
			RecvCounts: []int64{1, 3}, RecvOffsets: []int64{0, 1},
		}
		change(c)
	})
}

// allGatherV returns rank 1's call of a valid AllGatherV on two ranks, as modified by change.
func allGatherV(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.Operation, c.Count = AllGatherV, 5
		c.Splits = &Splits{RecvCounts: []int64{2, 5}, RecvOffsets: []int64{0, 2}}
		change(c)
	})
}

func TestSpans(t *testing.T) {
	rooted := func(o Operation, root int) Call {
		return allReduce(func(c *Call) { c.Operation, c.Root, c.Count = o, root, 10 })
	}
	for name, row := range map[string]struct {
		call       Call
		send, recv int64 // in elements, on rank 1 of 2
	}{
		"AllReduce":           {allReduce(func(*Call) {}), 1024, 1024},
		"AllToAllV":           {allToAllV(func(*Call) {}), 3, 4},
		"empty splits":        {allToAllV(func(c *Call) { c.Splits.SendCounts = []int64{0, 0} }), 0, 4},
		"AllGatherV":          {allGatherV(func(*Call) {}), 5, 7},
		"parts with gaps":     {allGatherV(func(c *Call) { c.Splits.RecvOffsets[1] = 100 }), 5, 105},
		"Gather on the root":  {rooted(Gather, 1), 10, 20},
		"Gather elsewhere":    {rooted(Gather, 0), 10, 0},
		"Scatter on the root": {rooted(Scatter, 1), 20, 10},
		"Scatter elsewhere":   {rooted(Scatter, 0), 0, 10},
		"Reduce":              {rooted(Reduce, 0), 10, 10},
	} {
		wantSend, wantRecv := 4*row.send, 4*row.recv // bytes of float32 elements
		if send, recv := row.call.Spans(2, 1); send != wantSend || recv != wantRecv {
			t.Errorf("%s: Spans(2, 1) = %d, %d; want %d, %d", name, send, recv, wantSend, wantRecv)
		}
	}
}

func TestValidateRejectsInvalidCalls(t *testing.T) {
	for name, c := range map[string]Call{
		"unknown operation":  allReduce(func(c *Call) { c.Operation = 200 }),
		"unknown type":       allReduce(func(c *Call) { c.DataType = 200 }),
		"unknown reduction":  allReduce(func(c *Call) { c.ReduceOp = 200 }),
		"bitwise of floats":  allReduce(func(c *Call) { c.ReduceOp = BAnd }),
		"a factor for a sum": allReduce(func(c *Call) { c.Factor = 2 }),
		"a factor for a copy": allReduce(func(c *Call) {
			c.Operation, c.ReduceOp, c.Factor = AllGather, PremulSum, 2
		}),
		"no factor":                   premulSum(func(c *Call) { c.Factor = 0 }),
		"a NaN as factor":             premulSum(func(c *Call) { c.Factor = math.NaN() }),
		"an infinite factor":          premulSum(func(c *Call) { c.Factor = math.Inf(-1) }),
		"a factor for int32":          premulSum(func(c *Call) { c.DataType = Int32 }),
		"negative count":              allReduce(func(c *Call) { c.Count = -1 }),
		"negative root":               allReduce(func(c *Call) { c.Operation, c.Root = Broadcast, -1 }),
		"root outside the group":      allReduce(func(c *Call) { c.Operation, c.Root = Broadcast, 2 }),
		"peer outside the group":      allReduce(func(c *Call) { c.Operation, c.Root = Send, 2 }),
		"message to this rank":        allReduce(func(c *Call) { c.Operation, c.Root = Send, 1 }),
		"send to AnySource":           allReduce(func(c *Call) { c.Operation, c.Root = Send, AnySource }),
		"negative tag":                allReduce(func(c *Call) { c.Operation, c.Tag = Recv, -1 }),
		"large tag":                   allReduce(func(c *Call) { c.Operation, c.Tag = Recv, MaxTag+1 }),
		"tag for a sum":               allReduce(func(c *Call) { c.Tag = 1 }),
		"Arrived for a sum":           allReduce(func(c *Call) { c.Arrived = func(int) {} }),
		"overlapping buffers":         allReduce(func(c *Call) { c.Recv = c.Send + 4 }),
		"another rank's count":        allGatherV(func(c *Call) { c.Count = 2 }),
		"no counts":                   allGatherV(func(c *Call) { c.Splits = nil }),
		"counts for a sum":            allGatherV(func(c *Call) { c.Operation = AllReduce }),
		"counts for both buffers":     allGatherV(func(c *Call) { c.Splits.SendCounts = []int64{2, 5} }),
		"one offset":                  allGatherV(func(c *Call) { c.Splits.RecvOffsets = []int64{0} }),
		"splits for the wrong buffer": allGatherV(func(c *Call) { c.Operation = ReduceScatterV }),
		"in place in another part": allReduce(func(c *Call) {
			c.Operation, c.Send = AllGather, c.Recv
		}),
		"splits for a sum": allToAllV(func(c *Call) { c.Operation = AllReduce }),
		"no splits":        allToAllV(func(c *Call) { c.Splits = nil }),
		"splits and count": allToAllV(func(c *Call) { c.Count = 1 }),
		"too many counts": allToAllV(func(c *Call) {
			c.Splits.RecvCounts = make([]int64, 9)
		}),
		"negative part":               allToAllV(func(c *Call) { c.Splits.SendCounts[0] = -1 }),
		"large offset":                allToAllV(func(c *Call) { c.Splits.RecvOffsets[1] = 1 << 60 }),
		"no norm":                     norm(func(c *Call) { c.Norm = nil }),
		"norm for a sum":              norm(func(c *Call) { c.Operation = AllReduce }),
		"norm of floats":              norm(func(c *Call) { c.DataType = Float32 }),
		"rows of 60 elements":         norm(func(c *Call) { c.Norm.Hidden, c.Count = 60, 120 }),
		"empty rows":                  norm(func(c *Call) { c.Norm.Hidden, c.Count = 0, 0 }),
		"long rows":                   norm(func(c *Call) { c.Norm.Hidden, c.Count = 1<<15, 1<<16 }),
		"too many rows":               norm(func(c *Call) { c.Norm.Rows, c.Count = 1<<58, 0 }),
		"negative rows":               norm(func(c *Call) { c.Norm.Rows = -1 }),
		"wrong count":                 norm(func(c *Call) { c.Count = 64 }),
		"epsilon NaN":                 norm(func(c *Call) { c.Norm.Epsilon = float32(math.NaN()) }),
		"negative epsilon":            norm(func(c *Call) { c.Norm.Epsilon = -1 }),
		"scales without quantization": norm(func(c *Call) { c.Norm.Scales = 5 << 20 }),
		"unknown quantization":        norm(func(c *Call) { c.Norm.Quant = QuantPerGroup + 1 }),
		"rows without whole groups": norm(func(c *Call) {
			c.Norm.Quant, c.Norm.ScaleStrides = QuantPerGroup, [2]int64{1, 1}
		}),
		"overlapping scales": norm(func(c *Call) {
			c.Norm.Quant, c.Norm.Quantized, c.Norm.Scales = QuantPerRow, 5<<20, 6<<20
		}),
		"misaligned residual": norm(func(c *Call) { c.Norm.Residual += 8 }),
		"residual is input":   norm(func(c *Call) { c.Norm.Residual = c.Send }),
		"weight in output":    norm(func(c *Call) { c.Norm.Weight = c.Recv + 16 }),
		"weight is residual": norm(func(c *Call) {
			c.Norm.Weight = c.Norm.Residual
		}),
	} {
		if err := c.Validate(2, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	large := allReduce(func(c *Call) { c.Count = math.MaxInt64 })
	if err := large.Validate(2, 1); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("count above MaxCount: got %v, want ErrOutOfRange", err)
	}
}

// TestValidateRefusesHugeScales checks strides with which the size of the scales overflows an
// int64. It calls validateQuant, because such a call has other mistakes: its buffers overlap.
func TestValidateRefusesHugeScales(t *testing.T) {
	n := Norm{Rows: 1<<31 + 1, Hidden: 64, Quant: QuantPerRow, ScaleStrides: [2]int64{1 << 32, 0}}
	if err := n.validateQuant(); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	n.Rows = 1<<16 + 1 // the scales extend over MaxCount+1 elements
	if err := n.validateQuant(); err != nil {
		t.Errorf("strides of the largest scales: %v", err)
	}
}

func TestValidateAcceptsBoundaryCalls(t *testing.T) {
	for name, c := range map[string]Call{
		"the largest count":    allReduce(func(c *Call) { c.Send, c.Count = c.Recv, MaxCount }),
		"a message to rank 0":  allReduce(func(c *Call) { c.Operation, c.Tag = Send, MaxTag }),
		"recv from AnySource":  allReduce(func(c *Call) { c.Operation, c.Root = Recv, AnySource }),
		"in place":             allReduce(func(c *Call) { c.Recv = c.Send }),
		"in place in own part": allReduce(func(c *Call) { c.Operation, c.Send = AllGather, c.Recv+4096 }),
		"adjacent buffers":     allReduce(func(c *Call) { c.Recv = c.Send + 4096 }),
		"empty buffers":        allReduce(func(c *Call) { c.Recv, c.Count = c.Send+4, 0 }),
		"a norm":               norm(func(*Call) {}),
		"a norm in place":      norm(func(c *Call) { c.Recv = c.Send }),
		"misaligned, no rows":  norm(func(c *Call) { c.Norm.Rows, c.Count, c.Send = 0, 0, 1 }),
		"uneven parts":         allToAllV(func(*Call) {}),
	} {
		if err := c.Validate(2, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryOperationHasTraits(t *testing.T) {
	for o := range Operation(Operations) {
		if row := operationTraits[o]; row.name == "" || len(row.paths) == 0 {
			t.Errorf("operation %d has traits %+v, want a name and paths", o, row)
		}
	}
	const unknown = Operation(Operations)
	if got, want := unknown.String(), "Operation(?)"; got != want {
		t.Errorf("the name of an unknown operation is %q, want %q", got, want)
	}
	if unknown.SupportsPath(PathPlain) {
		t.Error("an unknown operation supports the plain path")
	}
}
