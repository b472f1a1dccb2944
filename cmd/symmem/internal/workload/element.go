package workload

import (
	"bytes"
	"encoding/binary"
	"math"

	"symmem"
	"symmem/internal/reduce"
)

// Encode appends value to dst as an element of type t, in native byte order. Floating-point types
// round the value, and integer types must represent it exactly.
func Encode(dst []byte, t symmem.DataType, value float64) []byte {
	order := binary.NativeEndian
	switch t {
	case symmem.Float64:
		return order.AppendUint64(dst, math.Float64bits(value))
	case symmem.Float32:
		return order.AppendUint32(dst, math.Float32bits(float32(value)))
	case symmem.Float16:
		return order.AppendUint16(dst, reduce.Float16Bits(float32(value)))
	case symmem.BFloat16:
		return order.AppendUint16(dst, reduce.BFloat16Bits(float32(value)))
	case symmem.Int64, symmem.Uint64:
		return order.AppendUint64(dst, uint64(int64(value)))
	case symmem.Int32, symmem.Uint32:
		return order.AppendUint32(dst, uint32(int64(value)))
	case symmem.Int16, symmem.Uint16:
		return order.AppendUint16(dst, uint16(int64(value)))
	default: // Int8, Uint8
		return append(dst, byte(int64(value)))
	}
}

// Decode returns the element of type t at the beginning of src. It rounds integers that a float64
// cannot represent.
func Decode(src []byte, t symmem.DataType) float64 {
	order := binary.NativeEndian
	switch t {
	case symmem.Float64:
		return math.Float64frombits(order.Uint64(src))
	case symmem.Float32:
		return float64(math.Float32frombits(order.Uint32(src)))
	case symmem.Float16:
		return float64(reduce.Float16Value(order.Uint16(src)))
	case symmem.BFloat16:
		return float64(reduce.BFloat16Value(order.Uint16(src)))
	case symmem.Int64:
		return float64(int64(order.Uint64(src)))
	case symmem.Int32:
		return float64(int32(order.Uint32(src)))
	case symmem.Uint64:
		return float64(order.Uint64(src))
	case symmem.Uint32:
		return float64(order.Uint32(src))
	case symmem.Int16:
		return float64(int16(order.Uint16(src)))
	case symmem.Uint16:
		return float64(order.Uint16(src))
	case symmem.Int8:
		return float64(int8(src[0]))
	default: // Uint8
		return float64(src[0])
	}
}

func isFloat(t symmem.DataType) bool {
	switch t {
	case symmem.Float64, symmem.Float32, symmem.Float16, symmem.BFloat16:
		return true
	default:
		return false
	}
}

// Difference describes the wrong elements of a buffer. All fields are 0 if no element is wrong.
type Difference struct {
	Wrong     int64   // number of wrong elements
	First     int64   // index of the first wrong element
	Got, Want float64 // actual and right value of the first wrong element
}

// Compare compares the output of a call with the right one.
func (p *Pattern) Compare(got, want []byte) Difference {
	return compare(got, want, p.DataType, p.Tolerance())
}

// compare compares elements of type t. got and want must have the same length. tolerance is the
// permitted relative error.
func compare(got, want []byte, t symmem.DataType, tolerance float64) Difference {
	var d Difference
	if bytes.Equal(got, want) { // fast path
		return d
	}

	size := t.Size()
	for offset := 0; offset < len(want); offset += size {
		end := offset + size
		if bytes.Equal(got[offset:end], want[offset:end]) {
			continue
		}

		gotValue := Decode(got[offset:], t)
		wantValue := Decode(want[offset:], t)
		maxError := tolerance * math.Abs(wantValue)
		isTolerable := math.Abs(gotValue-wantValue) <= maxError // false for NaN
		if isTolerable {
			continue
		}

		isFirst := d.Wrong == 0
		if isFirst {
			d.First = int64(offset / size)
			d.Got = gotValue
			d.Want = wantValue
		}

		d.Wrong++
	}

	return d
}
