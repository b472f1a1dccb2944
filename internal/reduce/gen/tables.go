package main

import "strings"

// kernel is a function in assembly that reduces the elements of one type with one operation. The
// package comment in main.go describes its shape and its registers. The names of its instructions
// consist of a prefix for the operation, a letter for the sign of some integers, and a suffix for
// the type:
//
//	VPMIN + S + W  minimum of int16
//	VPMULL + D     product of int32
//	VADD + PS      sum of float32
//	VPAND + D      bitwise and of integers with AVX-512
//	VPAND          bitwise and of integers with AVX2
type kernel struct {
	operation operation
	element   element
}

type element struct {
	name       string
	laneSuffix string // of instructions, except bitwise ones
	size       int    // in memory, in bytes
	isFloat    bool
	is16Bit    bool // a 16-bit float, combined as float32
}

type operation struct {
	name string
	// integers and floats are prefixes of instructions. instructionSet.combine replaces missing
	// instructions.
	integers, floats string
	isBitwise        bool
	isScaled         bool // multiplies each source by a factor
	dependsOnSign    bool // has different instructions for signed and unsigned integers
}

// The order is that of the constants in package reduce.
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

// exists reports whether the operation is defined for the element.
func (k kernel) exists() bool {
	switch {
	case k.operation.isBitwise:
		return !k.element.isFloat
	case k.operation.isScaled:
		return k.element.isFloat
	default:
		return true
	}
}

// instruction returns the instruction that combines two vectors. bitwiseSuffix is D with AVX-512.
func (k kernel) instruction(bitwiseSuffix string) string {
	prefix := k.operation.integers
	if k.element.isFloat {
		prefix = k.operation.floats
	}

	if prefix == "" {
		panic("no instruction implements " + k.operation.name + " of " + k.element.name)
	}

	if k.operation.isBitwise {
		return prefix + bitwiseSuffix
	}

	return prefix + k.signSuffix() + k.element.laneSuffix
}

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

// symbol returns the kernel's name in the assembly. Kernels that compute the same bits share one,
// such as the sums of int32 and uint32, or the bitwise operations on all integers.
func (k kernel) symbol(set instructionSet) string {
	elementName := k.element.name
	switch {
	case k.operation.isBitwise:
		elementName = "Int8"
	case k.element.isUnsigned() && !k.operation.dependsOnSign:
		elementName = "Int" + strings.TrimPrefix(elementName, "Uint")
	}

	return strings.ToLower(k.operation.name) + elementName + set.setName() + "<>(SB)"
}

// blockUnits returns the number of units (vectors in memory) that fill the accumulators.
func (k kernel) blockUnits() int {
	if k.element.is16Bit {
		return accumulators / 2
	}

	return accumulators
}

// accumulatorCount returns the number of accumulators for a number of units.
func (k kernel) accumulatorCount(units int) int {
	if k.element.is16Bit {
		return 2 * units
	}

	return units
}

// canonicalNaN returns the bits that replace every NaN in an accumulator.
func (k kernel) canonicalNaN() uint64 {
	switch k.element.name {
	case "Float64":
		return 0x7FFFFFFFFFFFFFFF
	case "BFloat16":
		return 0x7FFF0000 // rounds to 0x7FFF
	default: // Float32, and Float16, which rounds it to 0x7FFF
		return 0x7FFFFFFF
	}
}

// canDivide reports whether the kernel can turn its sum into an average.
func (k kernel) canDivide() bool { return k.element.isFloat && k.operation.name == "Sum" }
