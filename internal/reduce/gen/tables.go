package main

import "strings"

type element struct {
	name  string
	lane  string // suffix of instructions on accumulator lanes: PS, PD, B, W, D or Q
	size  int    // in memory, in bytes
	float bool
	half  bool // whether a vector in memory needs two accumulators
}

type operation struct {
	name string
	// integers and floats are names of instructions, without the suffix for the element type, as in
	// VPADDB and VADDPS. Types without such an instruction need a case in the method lanes.
	integers, floats string
	// bitwise operations have one instruction for all integers.
	bitwise bool
	// scaled operations, only for floats, multiply every source by vector register 15.
	scaled bool
	// signed operations have different instructions for signed and unsigned integers.
	signed bool
}

// operations and elements are in the order of the constants in package reduce.
var (
	operations = []operation{
		{name: "Sum", integers: "VPADD", floats: "VADD"},
		{name: "Prod", integers: "VPMULL", floats: "VMUL"},
		{name: "Min", integers: "VPMIN", signed: true},
		{name: "Max", integers: "VPMAX", signed: true},
		{name: "BAnd", integers: "VPAND", bitwise: true},
		{name: "BOr", integers: "VPOR", bitwise: true},
		{name: "BXor", integers: "VPXOR", bitwise: true},
		{name: "ScaledSum", floats: "VADD", scaled: true},
	}
	elements = []element{
		{name: "Float32", lane: "PS", size: 4, float: true},
		{name: "Float64", lane: "PD", size: 8, float: true},
		{name: "Float16", lane: "PS", size: 2, float: true, half: true},
		{name: "BFloat16", lane: "PS", size: 2, float: true, half: true},
		{name: "Int8", lane: "B", size: 1},
		{name: "Uint8", lane: "B", size: 1},
		{name: "Int32", lane: "D", size: 4},
		{name: "Int64", lane: "Q", size: 8},
		{name: "Int16", lane: "W", size: 2},
		{name: "Uint16", lane: "W", size: 2},
		{name: "Uint32", lane: "D", size: 4},
		{name: "Uint64", lane: "Q", size: 8},
	}
)

func (e element) unsigned() bool { return strings.HasPrefix(e.name, "Uint") }

func (k kernel) exists() bool {
	return !(k.op.bitwise && k.elem.float) && !(k.op.scaled && !k.elem.float)
}

// instruction returns the instruction that implements the whole operation. bitwise is the suffix of
// bitwise instructions.
func (k kernel) instruction(bitwise string) string {
	name := k.op.integers
	if k.elem.float {
		name = k.op.floats
	}
	if name == "" {
		panic("no instruction implements " + k.op.name + " of " + k.elem.name)
	}
	if k.op.bitwise {
		return name + bitwise
	}
	if k.op.signed {
		name += map[bool]string{true: "U", false: "S"}[k.elem.unsigned()]
	}
	return name + k.elem.lane
}
