package drivertest

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"symmem/driver"
	"symmem/driver/formula"
)

// inputPeriod is the number of elements after which inputs repeat, to save time. It is prime, so
// that data at a wrong offset differs from the expected data.
const inputPeriod = 65521

var inputCache sync.Map

// input returns the numbers that a rank contributes. They are the same in every run, and callers
// must not change them.
func input(h Harness, t driver.DataType, rank int, count int64) []byte {
	key := struct {
		unordered bool
		t         driver.DataType
		rank      int
		count     int64
	}{h.Unordered, t, rank, count}
	if numbers, found := inputCache.Load(key); found {
		return numbers.([]byte)
	}

	numbers := newInput(h, t, rank, count)
	inputCache.Store(key, numbers)
	return numbers
}

func newInput(h Harness, t driver.DataType, rank int, count int64) []byte {
	random := rand.New(rand.NewPCG(uint64(rank)+1, uint64(t)<<32|uint64(count)))
	data := randomNumbers(h, t, int(min(count, inputPeriod)), random)
	if count <= inputPeriod {
		return data
	}

	return bytes.Repeat(data, int(count/inputPeriod)+1)[:count*int64(t.Size())]
}

func randomNumbers(h Harness, t driver.DataType, n int, random *rand.Rand) []byte {
	numbers := make([]byte, 0, n*t.Size())
	for range n {
		switch {
		case t.Float() && h.Unordered:
			numbers = formula.AppendFloat(numbers, t, float64(random.IntN(7)-3))
		case t.Float():
			numbers = formula.AppendFloat(numbers, t, random.Float64()*4-2)
		case h.Unordered:
			numbers = formula.AppendBits(numbers, t, uint64(random.IntN(4)))
		default:
			numbers = formula.AppendBits(numbers, t, random.Uint64())
		}
	}

	return numbers
}
