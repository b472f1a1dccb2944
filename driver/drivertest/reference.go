package drivertest

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"symmem/driver"
	"symmem/driver/formula"
)

// period is the number of elements after which inputs repeat, because drawing more numbers would
// take long. The period is prime, so that data that is misplaced by a round number of bytes differs
// from the expected data.
const period = 65521

// inputCache caches the results of input.
var inputCache sync.Map

// input returns the numbers that a rank contributes, which are the same in every run and must not
// be changed.
func input(h Harness, t driver.DataType, rank int, count int64) []byte {
	key := struct {
		unordered bool
		t         driver.DataType
		rank      int
		count     int64
	}{h.Unordered, t, rank, count}
	if in, found := inputCache.Load(key); found {
		return in.([]byte)
	}
	in := newInput(h, t, rank, count)
	inputCache.Store(key, in)
	return in
}

func newInput(h Harness, t driver.DataType, rank int, count int64) []byte {
	draws := rand.New(rand.NewPCG(uint64(rank)+1, uint64(t)<<32|uint64(count)))
	data := drawNumbers(h, t, int(min(count, period)), draws)
	if count <= period {
		return data
	}
	return bytes.Repeat(data, int(count/period)+1)[:count*int64(t.Size())]
}

func drawNumbers(h Harness, t driver.DataType, n int, draws *rand.Rand) []byte {
	out := make([]byte, 0, n*t.Size())
	for range n {
		switch {
		case t.Float() && h.Unordered:
			out = formula.AppendFloat(out, t, float64(draws.IntN(7)-3))
		case t.Float():
			out = formula.AppendFloat(out, t, draws.Float64()*4-2)
		case h.Unordered:
			out = formula.AppendBits(out, t, uint64(draws.IntN(4)))
		default:
			out = formula.AppendBits(out, t, draws.Uint64())
		}
	}
	return out
}
