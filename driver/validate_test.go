package driver

import (
	"errors"
	"math"
	"testing"
)

// The calls in this file are those of rank 1 in a group of 2 ranks.
const groupRanks, ownRank = 2, 1

// Addresses of the buffers in these calls. Validate does not access the buffers. They are so far
// apart that they do not overlap.
const (
	sendAddress = (1 + iota) << 20
	recvAddress
	residualAddress
	weightAddress
	quantizedAddress
	scalesAddress
)

// The functions below return valid calls, as modified by change.

// allReduce returns a sum of 1024 float32 elements, which are 4096 bytes.
func allReduce(change func(*Call)) Call {
	c := Call{
		Operation: AllReduce, DataType: Float32, Count: 1024,
		Send: sendAddress, Recv: recvAddress,
	}
	change(&c)
	return c
}

// premulSum returns an AllReduce that multiplies the inputs by a factor.
func premulSum(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.ReduceOp, c.Factor = PremulSum, 0.5
		change(c)
	})
}

// norm returns an AllReduceRMSNorm of 2 rows of 64 elements.
func norm(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		const rows, hidden = 2, 64
		c.Operation, c.DataType, c.Count = AllReduceRMSNorm, BFloat16, rows*hidden
		c.Norm = &Norm{
			Rows: rows, Hidden: hidden, Epsilon: 1e-5,
			Residual: residualAddress, Weight: weightAddress,
		}
		change(c)
	})
}

// allToAllV returns an AllToAllV, whose Count is 0 because the splits hold its counts.
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

// allGatherV returns an AllGatherV of 2 elements of rank 0 and 5 elements of this rank.
func allGatherV(change func(*Call)) Call {
	return allReduce(func(c *Call) {
		c.Operation, c.Count = AllGatherV, 5
		c.Splits = &Splits{RecvCounts: []int64{2, 5}, RecvOffsets: []int64{0, 2}}
		change(c)
	})
}

// TestSpans checks how many bytes of its buffers a call uses.
func TestSpans(t *testing.T) {
	rooted := func(o Operation, root int) Call {
		return allReduce(func(c *Call) { c.Operation, c.Root, c.Count = o, root, 10 })
	}
	const elementBytes = 4 // of a float32
	for name, row := range map[string]struct {
		call       Call
		send, recv int64 // want, in elements
	}{
		"AllReduce": {call: allReduce(func(*Call) {}), send: 1024, recv: 1024},
		// A split buffer ends with its last part that is not empty.
		"AllToAllV": {call: allToAllV(func(*Call) {}), send: 1 + 2, recv: 1 + 3},
		"empty splits": {
			call: allToAllV(func(c *Call) { c.Splits.SendCounts = []int64{0, 0} }),
			send: 0, recv: 1 + 3,
		},
		"AllGatherV": {call: allGatherV(func(*Call) {}), send: 5, recv: 2 + 5},
		"parts with gaps": {
			call: allGatherV(func(c *Call) { c.Splits.RecvOffsets[1] = 100 }),
			send: 5, recv: 100 + 5,
		},
		// Only the root has the parts of both ranks.
		"Gather on the root":  {call: rooted(Gather, ownRank), send: 10, recv: 2 * 10},
		"Gather elsewhere":    {call: rooted(Gather, 0), send: 10, recv: 0},
		"Scatter on the root": {call: rooted(Scatter, ownRank), send: 2 * 10, recv: 10},
		"Scatter elsewhere":   {call: rooted(Scatter, 0), send: 0, recv: 10},
		"Reduce":              {call: rooted(Reduce, 0), send: 10, recv: 10},
	} {
		wantSend, wantRecv := elementBytes*row.send, elementBytes*row.recv
		send, recv := row.call.Spans(groupRanks, ownRank)
		if send != wantSend || recv != wantRecv {
			t.Errorf("%s: Spans(%d, %d) = %d, %d bytes; want %d, %d", name, groupRanks, ownRank,
				send, recv, wantSend, wantRecv)
		}
	}
}

// checkInvalid fails the test for each call that Validate does not reject with ErrInvalid. The keys
// say what is wrong with the calls.
func checkInvalid(t *testing.T, calls map[string]Call) {
	t.Helper()
	for name, call := range calls {
		if err := call.Validate(groupRanks, ownRank); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Validate = %v, want ErrInvalid", name, err)
		}
	}
}

func TestValidateRejectsInvalidCalls(t *testing.T) {
	checkInvalid(t, map[string]Call{
		"unknown operation":  allReduce(func(c *Call) { c.Operation = 200 }),
		"unknown type":       allReduce(func(c *Call) { c.DataType = 200 }),
		"unknown reduction":  allReduce(func(c *Call) { c.ReduceOp = 200 }),
		"bitwise of floats":  allReduce(func(c *Call) { c.ReduceOp = BAnd }),
		"a factor for a sum": allReduce(func(c *Call) { c.Factor = 2 }),
		"a factor for a copy": allReduce(func(c *Call) {
			c.Operation, c.ReduceOp, c.Factor = AllGather, PremulSum, 2
		}),
		"no factor":          premulSum(func(c *Call) { c.Factor = 0 }),
		"a NaN as factor":    premulSum(func(c *Call) { c.Factor = math.NaN() }),
		"an infinite factor": premulSum(func(c *Call) { c.Factor = math.Inf(-1) }),
		"a factor for int32": premulSum(func(c *Call) { c.DataType = Int32 }),
		"negative count":     allReduce(func(c *Call) { c.Count = -1 }),
		"negative root":      allReduce(func(c *Call) { c.Operation, c.Root = Broadcast, -1 }),
		"root outside the group": allReduce(func(c *Call) {
			c.Operation, c.Root = Broadcast, groupRanks
		}),
		// The peer of a Send or Recv is in Root.
		"peer outside the group": allReduce(func(c *Call) {
			c.Operation, c.Root = Send, groupRanks
		}),
		"message to this rank": allReduce(func(c *Call) { c.Operation, c.Root = Send, ownRank }),
		"send to AnySource":    allReduce(func(c *Call) { c.Operation, c.Root = Send, AnySource }),
		"negative tag":         allReduce(func(c *Call) { c.Operation, c.Tag = Recv, -1 }),
		"large tag":            allReduce(func(c *Call) { c.Operation, c.Tag = Recv, MaxTag+1 }),
		"tag for a sum":        allReduce(func(c *Call) { c.Tag = 1 }),
		"Arrived for a sum":    allReduce(func(c *Call) { c.Arrived = func(int) {} }),
		"overlapping buffers":  allReduce(func(c *Call) { c.Recv = c.Send + 4 }),
		// The start of the receive buffer is the part of rank 0.
		"in place in another part": allReduce(func(c *Call) {
			c.Operation, c.Send = AllGather, c.Recv
		}),
	})
	large := allReduce(func(c *Call) { c.Count = math.MaxInt64 })
	if err := large.Validate(groupRanks, ownRank); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("count above MaxCount: Validate = %v, want ErrOutOfRange", err)
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

func TestValidateRejectsInvalidSplits(t *testing.T) {
	checkInvalid(t, map[string]Call{
		"another rank's count": allGatherV(func(c *Call) { c.Count = 2 }),
		"no counts":            allGatherV(func(c *Call) { c.Splits = nil }),
		"counts for a sum":     allGatherV(func(c *Call) { c.Operation = AllReduce }),
		"counts for both buffers": allGatherV(func(c *Call) {
			c.Splits.SendCounts = []int64{2, 5}
		}),
		"one offset for two ranks":    allGatherV(func(c *Call) { c.Splits.RecvOffsets = []int64{0} }),
		"splits for the wrong buffer": allGatherV(func(c *Call) { c.Operation = ReduceScatterV }),
		"splits for a sum":            allToAllV(func(c *Call) { c.Operation = AllReduce }),
		"no splits":                   allToAllV(func(c *Call) { c.Splits = nil }),
		"splits and count":            allToAllV(func(c *Call) { c.Count = 1 }),
		"nine counts for two ranks": allToAllV(func(c *Call) {
			c.Splits.RecvCounts = make([]int64, 9)
		}),
		"negative part":         allToAllV(func(c *Call) { c.Splits.SendCounts[0] = -1 }),
		"offset above MaxCount": allToAllV(func(c *Call) { c.Splits.RecvOffsets[1] = 1 << 60 }),
	})
}

func TestValidateRejectsInvalidNorms(t *testing.T) {
	checkInvalid(t, map[string]Call{
		"no norm":         norm(func(c *Call) { c.Norm = nil }),
		"norm for a sum":  norm(func(c *Call) { c.Operation = AllReduce }),
		"norm of float32": norm(func(c *Call) { c.DataType = Float32 }),
		// Rows have a multiple of NormUnit elements, which is 8, up to MaxHidden, which is 1<<14.
		"rows of 60 elements": norm(func(c *Call) { c.Norm.Hidden, c.Count = 60, 2*60 }),
		"empty rows":          norm(func(c *Call) { c.Norm.Hidden, c.Count = 0, 0 }),
		"long rows":           norm(func(c *Call) { c.Norm.Hidden, c.Count = 1<<15, 2<<15 }),
		// 1<<58 rows of 64 elements are 1<<64 elements, which overflows to 0.
		"too many rows":               norm(func(c *Call) { c.Norm.Rows, c.Count = 1<<58, 0 }),
		"negative rows":               norm(func(c *Call) { c.Norm.Rows = -1 }),
		"the count of one row":        norm(func(c *Call) { c.Count = 64 }),
		"epsilon NaN":                 norm(func(c *Call) { c.Norm.Epsilon = float32(math.NaN()) }),
		"negative epsilon":            norm(func(c *Call) { c.Norm.Epsilon = -1 }),
		"scales without quantization": norm(func(c *Call) { c.Norm.Scales = scalesAddress }),
		"unknown quantization":        norm(func(c *Call) { c.Norm.Quant = QuantPerGroup + 1 }),
		// A group has 128 elements, and a row only 64.
		"rows without whole groups": norm(func(c *Call) {
			c.Norm.Quant, c.Norm.ScaleStrides = QuantPerGroup, [2]int64{1, 1}
		}),
		// Without ScaleStrides, the scales of both rows have the same address.
		"overlapping scales": norm(func(c *Call) {
			c.Norm.Quant, c.Norm.Quantized, c.Norm.Scales = QuantPerRow, quantizedAddress, scalesAddress
		}),
		// Buffers must be aligned to NormAlign, which is 16.
		"misaligned residual": norm(func(c *Call) { c.Norm.Residual += 8 }),
		"residual is input":   norm(func(c *Call) { c.Norm.Residual = c.Send }),
		"weight in output":    norm(func(c *Call) { c.Norm.Weight = c.Recv + 16 }),
		"weight is residual":  norm(func(c *Call) { c.Norm.Weight = c.Norm.Residual }),
	})
}

func TestValidateAcceptsBoundaryCalls(t *testing.T) {
	const bufferBytes = 4096 // see allReduce
	for name, call := range map[string]Call{
		"the largest count":   allReduce(func(c *Call) { c.Send, c.Count = c.Recv, MaxCount }),
		"the largest tag":     allReduce(func(c *Call) { c.Operation, c.Tag = Send, MaxTag }),
		"recv from AnySource": allReduce(func(c *Call) { c.Operation, c.Root = Recv, AnySource }),
		"in place":            allReduce(func(c *Call) { c.Recv = c.Send }),
		// In the receive buffer, this rank's part follows that of rank 0.
		"in place in own part": allReduce(func(c *Call) {
			c.Operation, c.Send = AllGather, c.Recv+bufferBytes
		}),
		"adjacent buffers": allReduce(func(c *Call) { c.Recv = c.Send + bufferBytes }),
		"empty buffers":    allReduce(func(c *Call) { c.Recv, c.Count = c.Send+4, 0 }),
		"a norm":           norm(func(*Call) {}),
		"a norm in place":  norm(func(c *Call) { c.Recv = c.Send }),
		"misaligned norm without rows": norm(func(c *Call) {
			c.Norm.Rows, c.Count, c.Send = 0, 0, 1
		}),
		"uneven parts": allToAllV(func(*Call) {}),
	} {
		if err := call.Validate(groupRanks, ownRank); err != nil {
			t.Errorf("%s: Validate = %v, want nil", name, err)
		}
	}
}

func TestEveryOperationHasTraits(t *testing.T) {
	// Operations is the number of operations.
	for o := range Operation(Operations) {
		if row := operationTraits[o]; row.name == "" || len(row.paths) == 0 {
			t.Errorf("operation %d has traits %+v, want a name and paths", o, row)
		}
	}

	const unknown = Operation(Operations) // the first value after the last operation
	if got, want := unknown.String(), "Operation(?)"; got != want {
		t.Errorf("the name of an unknown operation is %q, want %q", got, want)
	}

	if unknown.SupportsPath(PathPlain) {
		t.Error("an unknown operation supports the plain path")
	}
}
