package drivertest

import (
	"math/rand/v2"
	"sync"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// number is what the reference computes with. Halves are widened to float32.
type number interface {
	~int8 | ~uint8 | ~int32 | ~int64 | ~float32 | ~float64
}

// elements views memory of the host as numbers.
func elements[T number](b []byte) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(one)))
}

// memory makes room for n numbers, aligned to them.
func memory[T number](n int) []byte {
	var one T
	bytes := n * int(unsafe.Sizeof(one))
	words := make([]uint64, (bytes+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)
}

func narrowed(t driver.DataType, in []byte) []byte {
	out := make([]byte, 0, len(in)/2)
	for _, v := range elements[float32](in) {
		bits := reduce.BFloat16Bits(v)
		if t == driver.Float16 {
			bits = reduce.Float16Bits(v)
		}
		out = append(out, byte(bits), byte(bits>>8))
	}
	return out
}

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
	n := int(count) * t.Size()
	out := memory[int64]((n + 7) / 8)[:n]
	for at := 0; at < n; {
		at += copy(out[at:], one)
	}
	return out
}

// inputs draws so many numbers.
func inputs(h Harness, t driver.DataType, n int, draws *rand.Rand) []byte {
	next := func() float64 { return draws.Float64()*4 - 2 }
	if h.Unordered {
		next = func() float64 { return float64(draws.IntN(7) - 3) }
	}
	switch t {
	case driver.Float64:
		return drawn[float64](n, next)
	case driver.Float32:
		return drawn[float32](n, next)
	case driver.Float16, driver.BFloat16:
		return narrowed(t, drawn[float32](n, next))
	case driver.Int8, driver.Uint8, driver.Int32, driver.Int64:
	}
	if h.Unordered {
		return small(t, n, draws)
	}
	out := memory[int64](n)[:n*t.Size()]
	for i := range out {
		out[i] = byte(draws.Uint32())
	}
	return out
}

func drawn[T float32 | float64](n int, next func() float64) []byte {
	out := memory[T](n)
	values := elements[T](out)
	for i := range values {
		values[i] = T(next())
	}
	return out
}

// small makes integers from 0 to 3, in the byte order of the machine.
func small(t driver.DataType, n int, draws *rand.Rand) []byte {
	out := memory[int64](n)[:n*t.Size()]
	for i := 0; i < len(out); i += t.Size() {
		out[i] = byte(draws.IntN(4))
	}
	return out
}
