package drivertest

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"symmem/driver"
	"symmem/driver/formula"
)

// period is after how many numbers inputs repeat, since drawing them takes longer than what is
// tested, most of all under the race detector. It is a prime, so that what is moved by a round
// number of bytes never lies on its own copy.
const period = 65521

// made holds what input has made, by what that depends on: trials of all operations and paths take
// the same numbers.
var made sync.Map

// input makes the numbers that a rank contributes, alike in every run. Callers do not change them.
func input(h Harness, t driver.DataType, rank int, count int64) []byte {
	key := struct {
		unordered bool
		t         driver.DataType
		rank      int
		count     int64
	}{h.Unordered, t, rank, count}
	if in, is := made.Load(key); is {
		return in.([]byte)
	}
	in := newInput(h, t, rank, count)
	made.Store(key, in)
	return in
}

func newInput(h Harness, t driver.DataType, rank int, count int64) []byte {
	draws := rand.New(rand.NewPCG(uint64(rank)+1, uint64(t)<<32|uint64(count)))
	one := inputs(h, t, int(min(count, period)), draws)
	if count <= period {
		return one
	}
	return bytes.Repeat(one, int(count/period)+1)[:count*int64(t.Size())]
}

// inputs draws so many numbers: of integers all bits, or, where sums must be exact, from 0 to 3.
func inputs(h Harness, t driver.DataType, n int, draws *rand.Rand) []byte {
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
