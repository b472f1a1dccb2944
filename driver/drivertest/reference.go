package drivertest

import (
	"math/rand/v2"
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

// combined is the plainest reduction: element by element, rank after rank.
func combined(t driver.DataType, op driver.ReduceOp, inputs [][]byte) []byte {
	switch t {
	case driver.Float64:
		return fold[float64](op, inputs)
	case driver.Float32:
		return fold[float32](op, inputs)
	case driver.Int8:
		return fold[int8](op, inputs)
	case driver.Uint8:
		return fold[uint8](op, inputs)
	case driver.Int32:
		return fold[int32](op, inputs)
	case driver.Int64:
		return fold[int64](op, inputs)
	case driver.Float16, driver.BFloat16:
	}
	wide := make([][]byte, len(inputs))
	for i, in := range inputs {
		wide[i] = widened(t, in)
	}
	return narrowed(t, fold[float32](op, wide))
}

func fold[T number](op driver.ReduceOp, inputs [][]byte) []byte {
	out := memory[T](len(elements[T](inputs[0])))
	copy(out, inputs[0])
	sums := elements[T](out)
	for _, in := range inputs[1:] {
		for i, v := range elements[T](in) {
			sums[i] = pair(op, sums[i], v)
		}
	}
	if op == driver.Avg {
		for i := range sums {
			sums[i] /= T(len(inputs))
		}
	}
	return out
}

func pair[T number](op driver.ReduceOp, a, b T) T {
	switch op {
	case driver.Prod:
		return a * b
	case driver.Min:
		return min(a, b)
	case driver.Max:
		return max(a, b)
	case driver.Sum, driver.Avg:
		return a + b
	default:
		panic("no reference for " + op.String())
	}
}

func widened(t driver.DataType, in []byte) []byte {
	out := memory[float32](len(in) / 2)
	values := elements[float32](out)
	for i := range values {
		bits := uint16(in[2*i]) | uint16(in[2*i+1])<<8
		values[i] = reduce.BFloat16Value(bits)
		if t == driver.Float16 {
			values[i] = reduce.Float16Value(bits)
		}
	}
	return out
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

// input makes the numbers that a rank contributes, alike in every run.
func input(h Harness, t driver.DataType, rank int, count int64) []byte {
	draws := rand.New(rand.NewPCG(uint64(rank)+1, uint64(t)<<32|uint64(count)))
	next := func() float64 { return draws.Float64()*4 - 2 }
	if h.Unordered {
		next = func() float64 { return float64(draws.IntN(7) - 3) }
	}
	n := int(count)
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
