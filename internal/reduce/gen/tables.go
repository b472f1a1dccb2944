package main

import "strings"

// A kernel combines elements of one type with one operation, such as the minimum of int16. Its code
// holds the elements in accumulators: vector registers that are divided into lanes, one for each
// element. Most kernels need one instruction for each vector. Its name has two or three parts:
//
//	VPMIN + S + W     minimum of int16: S for signed integers, W for lanes of 16 bits
//	VPMULL + D        product of int32: D for lanes of 32 bits
//	VADD + PS         sum of float32: PS for lanes of 32-bit floats
//	VPAND + D         bitwise and: D for any integers with AVX-512, and nothing with AVX2
//
// Lanes of 16-bit floats do not exist. Accumulators hold such elements as float32, so that one
// vector in memory, called a unit, needs two accumulators.

// element describes a type of elements.
type element struct {
	name       string
	laneSuffix string // last part of the names of instructions on accumulators
	size       int    // in memory, in bytes
	isFloat    bool
	is16Bit    bool // a 16-bit float
}

// operation describes how a kernel combines elements.
type operation struct {
	name string
	// integers and floats are the first parts of the names of instructions. If no instruction exists
	// for some elements, combineLanes has other code for them.
	integers, floats string
	isBitwise        bool
	isScaled         bool // a kernel first multiplies each source by a factor
	dependsOnSign    bool // signed and unsigned integers have different instructions
}

// The tables are in the order of the constants in package reduce.
var (
	operations = []operation{
		{name: "Sum", integers: "VPADD", floats: "VADD"},
		{name: "Prod", integers: "VPMULL", floats: "VMUL"},
		{name: "Min", integers: "VPMIN", dependsOnSign: true},
		{name: "Max", integers: "VPMAX", dependsOnSign: true},
		{name: "BAnd", integers: "VPAND", isBitwise: true},
		{name: "BOr", integers: "VPOR", isBitwise: true},
		{name: "BXor", integers: "VPXOR", isBitwise: true},
		{name: "ScaledSum", floats: "VADD", isScaled: true},
	}
	elements = []element{
		{name: "Float32", laneSuffix: "PS", size: 4, isFloat: true},
		{name: "Float64", laneSuffix: "PD", size: 8, isFloat: true},
		{name: "Float16", laneSuffix: "PS", size: 2, isFloat: true, is16Bit: true},
		{name: "BFloat16", laneSuffix: "PS", size: 2, isFloat: true, is16Bit: true},
		{name: "Int8", laneSuffix: "B", size: 1},
		{name: "Uint8", laneSuffix: "B", size: 1},
		{name: "Int32", laneSuffix: "D", size: 4},
		{name: "Int64", laneSuffix: "Q", size: 8},
		{name: "Int16", laneSuffix: "W", size: 2},
		{name: "Uint16", laneSuffix: "W", size: 2},
		{name: "Uint32", laneSuffix: "D", size: 4},
		{name: "Uint64", laneSuffix: "Q", size: 8},
	}
)

func (e element) isUnsigned() bool { return strings.HasPrefix(e.name, "Uint") }

// exists reports whether the operation is defined for the element. Bitwise operations need
// integers, and the scaled sum needs floats.
func (k kernel) exists() bool {
	if k.operation.isBitwise {
		return !k.element.isFloat
	}

	return k.element.isFloat || !k.operation.isScaled
}

// instruction returns the instruction that combines two vectors. bitwiseSuffix is the last part of
// its name if the operation is bitwise.
func (k kernel) instruction(bitwiseSuffix string) string {
	name := k.operation.integers
	if k.element.isFloat {
		name = k.operation.floats
	}

	if name == "" {
		panic("no instruction implements " + k.operation.name + " of " + k.element.name)
	}

	if k.operation.isBitwise {
		return name + bitwiseSuffix
	}

	return name + k.signSuffix() + k.element.laneSuffix
}

// signSuffix returns S or U if signed and unsigned integers have different instructions.
func (k kernel) signSuffix() string {
	switch {
	case !k.operation.dependsOnSign:
		return ""
	case k.element.isUnsigned():
		return "U"
	default:
		return "S"
	}
}

// symbol returns the assembler's name of the kernel. Two kernels have the same name if they compute
// the same bits: the sums of int32 and uint32, or the bitwise operations of all integers.
func (k kernel) symbol(set instructionSet) string {
	name := k.element.name
	switch {
	case k.operation.isBitwise:
		name = "Int8"
	case k.element.isUnsigned() && !k.operation.dependsOnSign:
		name = "Int" + strings.TrimPrefix(name, "Uint")
	}

	return strings.ToLower(k.operation.name) + name + set.setName() + "<>(SB)"
}

// units returns the number of units that fit into all accumulators.
func (k kernel) units() int {
	if k.element.is16Bit {
		return accumulators / 2
	}

	return accumulators
}

// registers returns the number of accumulators that hold the given number of units.
func (k kernel) registers(units int) int {
	if k.element.is16Bit {
		return 2 * units
	}

	return units
}

// canonicalNaN returns the bits of the NaN that replaces every NaN in an accumulator.
func (k kernel) canonicalNaN() uint64 {
	switch k.element.name {
	case "Float64":
		return 0x7FFFFFFFFFFFFFFF
	case "BFloat16":
		// The lower 16 bits are zero, so that rounding them off does not change the upper 16 bits.
		return 0x7FFF0000
	default: // Float32 and Float16
		return 0x7FFFFFFF
	}
}

// canDivide reports whether the kernel can compute an average: a sum that it then divides by a
// number, or multiplies by a factor.
func (k kernel) canDivide() bool { return k.element.isFloat && k.operation.name == "Sum" }
