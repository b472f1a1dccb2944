package reduce

import (
	"fmt"
	"slices"
)

// Op identifies the operation that combines two elements.
type Op uint8

// The operations. The package comment specifies their results for NaNs, zeros and overflow.
const (
	Sum Op = iota
	Prod
	Min
	Max
	// The following operations are bitwise and only for integers, see Accepts.
	BAnd
	BOr
	BXor
	OpCount = iota
)

const opScaledSum Op = OpCount // for the function ScaledSum

// Accepts reports whether op is valid and defined for t.
func (op Op) Accepts(t DataType) bool {
	return t.Valid() && (op < BAnd || op < OpCount && !t.Float())
}

// Number is the constraint of Combine.
type Number interface {
	integer | ~float32 | ~float64
}

// Combine combines two elements. The built-in functions min and max order zeros and propagate NaNs
// as in IEEE 754-2019. The bits of a NaN may differ from those in the package comment.
func Combine[T Number](op Op, a, b T) T {
	switch op {
	case Sum:
		return a + b
	case Prod:
		return a * b
	case Min:
		return min(a, b)
	case Max:
		return max(a, b)
	case BAnd:
		return T(int64(a) & int64(b))
	case BOr:
		return T(int64(a) | int64(b))
	case BXor:
		return T(int64(a) ^ int64(b))
	case opScaledSum: // see combineFloats
	}

	panic("reduce: invalid operation")
}

// DataType identifies an element type. The zero value is Float32.
type DataType uint8

// The element types, floats first.
const (
	Float32 DataType = iota
	Float64
	Float16
	BFloat16 // upper half of a float32
	Int8
	Uint8
	Int32
	Int64
	Int16
	Uint16
	Uint32
	Uint64
	dataTypes = iota
)

var dataTypeNames = [dataTypes]string{
	"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64",
	"int16", "uint16", "uint32", "uint64",
}

var dataTypeSizes = [dataTypes]uint8{4, 8, 2, 2, 1, 1, 4, 8, 2, 2, 4, 8}

// DataTypes returns all element types in ascending order.
func DataTypes() []DataType {
	all := make([]DataType, 0, dataTypes)
	for t := range DataType(dataTypes) {
		all = append(all, t)
	}

	return all
}

// ParseDataType returns the element type with this name.
func ParseDataType(name string) (DataType, error) {
	if t := slices.Index(dataTypeNames[:], name); t >= 0 {
		return DataType(t), nil
	}

	return 0, fmt.Errorf("parsing data type %q: want one of %v", name, dataTypeNames)
}

// Valid reports whether t is one of the element types.
func (t DataType) Valid() bool { return t < dataTypes }

// Size returns the size of an element in bytes.
func (t DataType) Size() int { return int(dataTypeSizes[t]) }

// Float reports whether t is a floating-point type.
func (t DataType) Float() bool { return t <= BFloat16 }

// Unsigned reports whether t is an unsigned integer type.
func (t DataType) Unsigned() bool {
	return t == Uint8 || t == Uint16 || t == Uint32 || t == Uint64
}

// String returns the lower-case name, such as "bfloat16".
func (t DataType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DataType(%d)", uint8(t))
	}

	return dataTypeNames[t]
}
