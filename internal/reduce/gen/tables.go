package main

import "strings"

type element struct {
	name       string
	laneSuffix string // of instructions on accumulator lanes: PS, PD, B, W, D or Q
	size       int    // in memory, in bytes
	isFloat    bool
	is16Bit    bool // 16-bit floats, of which a vector needs two accumulators
}

type operation struct {
	name string
	// integers and floats are names of instructions without the suffix for the type. Types without
	// such an instruction need a case in the method combineLanes.
	integers, floats string
	isBitwise        bool // all integers have the same instruction
	isScaled         bool // every source, a float, is multiplied by vector register 15
	dependsOnSign    bool // signed and unsigned integers have different instructions
}

// operations and elements are in the order of the constants in package reduce.
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

// exists reports whether the operation is defined for the element: bitwise operations are only for
// integers, and the scaled sum is only for floats.
func (k kernel) exists() bool {
	if k.operation.isBitwise {
		return !k.element.isFloat
	}

	return k.element.isFloat || !k.operation.isScaled
}

// instruction returns the instruction that combines two vectors. A bitwise instruction gets the
// given suffix.
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

	if k.operation.dependsOnSign && k.element.isUnsigned() {
		name += "U"
	} else if k.operation.dependsOnSign {
		name += "S"
	}

	return name + k.element.laneSuffix
}

// symbol returns the name of the kernel's function. Integers of the same size share a function if
// their results have the same bits, and all integers share bitwise operations.
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

// registers returns the number of accumulators of the given number of units.
func (k kernel) registers(units int) int {
	if k.element.is16Bit {
		return 2 * units
	}

	return units
}

// canonicalNaN returns the bits of the NaN that replaces all NaNs, in the type of accumulators. For
// BFloat16, the bits that rounding removes are zero, so that rounding does not carry.
func (k kernel) canonicalNaN() uint64 {
	switch k.element.name {
	case "Float64":
		return 0x7FFFFFFFFFFFFFFF
	case "BFloat16":
		return 0x7FFF0000
	default: // Float32 and Float16
		return 0x7FFFFFFF
	}
}

// canDivide reports whether the kernel can divide or multiply its results, for an average.
func (k kernel) canDivide() bool { return k.element.isFloat && k.operation.name == "Sum" }

// units returns the number of units in a block.
func (k kernel) units() int {
	if k.element.is16Bit {
		return accumulators / 2
	}

	return accumulators
}
