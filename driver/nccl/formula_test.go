package nccl

import (
	"encoding/binary"
	"math"
	"slices"

	"symmem/driver"
	"symmem/internal/reduce"
)

// computed is what kernels must make of the elements of all ranks, to the bit: a formula, with
// every step rounded by itself, and one NaN.
func computed(
	t driver.DataType, op driver.ReduceOp, f driver.Formula, inputs [][]byte,
) []byte {
	order := binary.LittleEndian
	switch t {
	case driver.Float32:
		return fold(t, op, f, inputs,
			func(b []byte) float32 { return math.Float32frombits(order.Uint32(b)) },
			func(b []byte, v float32) { order.PutUint32(b, bits32(v)) })
	case driver.Float64:
		return fold(t, op, f, inputs,
			func(b []byte) float64 { return math.Float64frombits(order.Uint64(b)) },
			func(b []byte, v float64) { order.PutUint64(b, bits64(v)) })
	case driver.Float16:
		return fold(t, op, f, inputs,
			func(b []byte) float32 { return reduce.Float16Value(order.Uint16(b)) },
			func(b []byte, v float32) { order.PutUint16(b, bits16(v, reduce.Float16Bits)) })
	case driver.BFloat16:
		return fold(t, op, f, inputs,
			func(b []byte) float32 { return reduce.BFloat16Value(order.Uint16(b)) },
			func(b []byte, v float32) { order.PutUint16(b, bits16(v, reduce.BFloat16Bits)) })
	case driver.Int8:
		return fold(t, op, f, inputs,
			func(b []byte) int8 { return int8(b[0]) }, func(b []byte, v int8) { b[0] = byte(v) })
	case driver.Uint8:
		return fold(t, op, f, inputs,
			func(b []byte) uint8 { return b[0] }, func(b []byte, v uint8) { b[0] = v })
	case driver.Int32:
		return fold(t, op, f, inputs,
			func(b []byte) int32 { return int32(order.Uint32(b)) },
			func(b []byte, v int32) { order.PutUint32(b, uint32(v)) })
	default:
		return fold(t, op, f, inputs,
			func(b []byte) int64 { return int64(order.Uint64(b)) },
			func(b []byte, v int64) { order.PutUint64(b, uint64(v)) })
	}
}

func bits32(v float32) uint32 {
	if v != v {
		return 0x7fffffff
	}
	return math.Float32bits(v)
}

func bits64(v float64) uint64 {
	if v != v {
		return 0x7fffffffffffffff
	}
	return math.Float64bits(v)
}

func bits16(v float32, bits func(float32) uint16) uint16 {
	if v != v {
		return 0x7fff
	}
	return bits(v)
}

type number interface {
	int8 | uint8 | int32 | int64 | float32 | float64
}

// fold combines the ranks of each element by a formula.
func fold[T number](
	t driver.DataType, op driver.ReduceOp, f driver.Formula, inputs [][]byte, get func([]byte) T,
	put func([]byte, T),
) []byte {
	size := t.Size()
	out, values, stored := make([]byte, len(inputs[0])), make([]T, len(inputs)), make([]byte, size)
	round := func(v T) T {
		if f == driver.RoundedTree && size == 2 {
			put(stored, v)
			v = get(stored)
		}
		return v
	}
	trees := f == driver.Tree || f == driver.RoundedTree
	for at := 0; at < len(out); at += size {
		for r, in := range inputs {
			values[r] = get(in[at:])
		}
		total := values[0]
		if trees && op != driver.Min && op != driver.Max {
			total = tree(op, values, round)
		} else {
			for _, v := range values[1:] {
				total = pair(op, total, v)
			}
		}
		if op == driver.Avg {
			total /= T(len(inputs))
		}
		put(out[at:], total)
	}
	return out
}

func tree[T number](op driver.ReduceOp, values []T, round func(T) T) T {
	if len(values) == 1 {
		return values[0]
	}
	half := len(values) / 2
	return round(pair(op, tree(op, values[:half], round), tree(op, values[half:], round)))
}

func pair[T number](op driver.ReduceOp, a, b T) T {
	switch op {
	case driver.Prod:
		return a * b
	case driver.Min:
		return min(a, b)
	case driver.Max:
		return max(a, b)
	default:
		return a + b
	}
}

// partThatDiffers returns which part of the elements is another one in two results.
func partThatDiffers(t driver.DataType, a, b []byte) float64 {
	size, differ := t.Size(), 0
	for at := 0; at < len(a); at += size {
		if !slices.Equal(a[at:at+size], b[at:at+size]) {
			differ++
		}
	}
	return float64(differ*size) / float64(len(a))
}
