package workload

import (
	"encoding/binary"
	"math"

	"symmem"
	"symmem/internal/reduce"
)

// Encode appends value to dst as an element of type t, in native byte order. It rounds the value to
// a floating-point type. If t is an integer type, it must represent the value exactly.
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
