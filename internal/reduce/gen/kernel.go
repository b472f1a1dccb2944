package main

import (
	"bytes"
	"fmt"
	"strings"
)

// A kernel is one operation on one element type.
type kernel struct {
	op   operation
	elem element
}

// An element is an element type.
type element struct {
	name  string
	lane  string // suffix of instructions on accumulator lanes: PS, PD, B, D, Q
	size  int    // bytes in memory
	float bool
	half  bool // one vector of memory needs two accumulators
}

// An operation is a constant of package reduce.
type operation struct {
	name string
	// integers and floats are the instructions that implement the whole operation. Those of lanes
	// are for types that have none. The type completes the names: VPADDB, VADDPS.
	integers, floats string
	// bitwise operations have one instruction for all integers. AVX-512 appends the size of lanes.
	bitwise bool
	// signed operations have different instructions for integers with and without a sign.
	signed bool
}

// Operations and elements are in the order of the constants of package reduce.
var (
	operations = []operation{
		{name: "Sum", integers: "VPADD", floats: "VADD"},
		{name: "Prod", integers: "VPMULL", floats: "VMUL"},
		{name: "Min", integers: "VPMIN", signed: true},
		{name: "Max", integers: "VPMAX", signed: true},
		{name: "BAnd", integers: "VPAND", bitwise: true},
		{name: "BOr", integers: "VPOR", bitwise: true},
		{name: "BXor", integers: "VPXOR", bitwise: true},
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
	}
)

// accumulators is the number of vector registers that hold a block.
const accumulators = 8

// A manner is a way of accessing memory.
type manner int

const (
	whole    manner = iota
	masked          // the lanes of K1
	streamed        // bypassing the caches
)

// vectors is an instruction set. A unit is one vector of memory; it has one accumulator, or two for
// halves. Addresses are operands of the assembler.
type vectors interface {
	name() string
	bytes() int      // of a vector
	masks() bool     // whether the last line is done with masks
	cleanUp() string // instruction before the return, or empty
	register(i int) string
	constants(p *program, k kernel)
	load(p *program, k kernel, unit int, address string, how manner)
	combine(p *program, k kernel, unit int, address string, how manner)
	// operand loads the operand of the final step into register 15.
	operand(p *program, k kernel, address string)
	// unlessFinite jumps to a label if an accumulator of the first units is infinite or a NaN.
	unlessFinite(p *program, k kernel, units int, label string)
	// unlessNaN jumps to a label if an accumulator of the first units holds a NaN, and canonical
	// replaces each NaN there by the canonical one.
	unlessNaN(p *program, k kernel, units int, label string)
	canonical(p *program, k kernel, units int)
	pack(p *program, k kernel, unit int)
	store(p *program, k kernel, unit int, address string, how manner)
}

// A program is assembly text under construction.
type program struct{ bytes.Buffer }

// op appends an instruction.
func (p *program) op(mnemonic string, operands ...any) {
	texts := make([]string, len(operands))
	for i, operand := range operands {
		texts[i] = fmt.Sprint(operand)
	}
	fmt.Fprintf(p, "\t%s\n", strings.TrimSpace(mnemonic+" "+strings.Join(texts, ", ")))
}

func (p *program) label(name string) { fmt.Fprintf(p, "\n%s:\n", name) }

func fileName(set vectors) string {
	return "kernels_" + strings.ToLower(set.name()) + "_amd64.s"
}

// exists reports whether the operation is defined for the type.
func (k kernel) exists() bool { return !k.op.bitwise || !k.elem.float }

// instruction returns the instruction that implements the whole operation. bitwise is what the
// instruction set appends to the names of bitwise instructions.
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
		name += map[bool]string{true: "U", false: "S"}[k.elem.name == "Uint8"]
	}
	return name + k.elem.lane
}

// symbol returns the name of the kernel's function. Bytes with and without a sign share a function if
// their results have the same bits, and bitwise operations have one function, which works on bytes.
func (k kernel) symbol(set vectors) string {
	name := k.elem.name
	if name == "Uint8" && !k.op.signed || k.op.bitwise {
		name = "Int8"
	}
	return strings.ToLower(k.op.name) + name + set.name() + "<>(SB)"
}

// registers returns the number of accumulators for a number of units.
func (k kernel) registers(units int) int {
	if k.elem.half {
		return 2 * units
	}
	return units
}

// canonicalNaN returns the bits of the NaN that replaces every NaN in an accumulator. For BFloat16
// the truncated bits are zero, so that nothing carries.
func (k kernel) canonicalNaN() uint64 {
	switch k.elem.name {
	case "Float64":
		return 0x7FFFFFFFFFFFFFFF
	case "BFloat16":
		return 0x7FFF0000
	}
	return 0x7FFFFFFF
}

// finalStep reports whether an average may need a division after the accumulation.
func (k kernel) finalStep() bool { return k.elem.float && k.op.name == "Sum" }

func (k kernel) units() int {
	if k.elem.half {
		return accumulators / 2
	}
	return accumulators
}

// assemble returns the assembly file of one instruction set.
func assemble(set vectors) []byte {
	p := &program{}
	fmt.Fprint(p, "// Code generated by gen. DO NOT EDIT.\n\n#include \"textflag.h\"\n\n")
	entry(p, set)
	var table program
	for o, op := range operations {
		for e, elem := range elements {
			k := kernel{op: op, elem: elem}
			symbol := "$" + k.symbol(set)
			if !k.exists() {
				symbol = "$0"
			} else if !bytes.Contains(p.Bytes(), []byte("TEXT "+k.symbol(set))) {
				write(p, set, k)
			}
			fmt.Fprintf(&table, "DATA kernels%s<>+%d(SB)/8, %s\n",
				set.name(), 8*(o*len(elements)+e), symbol)
		}
	}
	p.Write(table.Bytes())
	fmt.Fprintf(p, "GLOBL kernels%s<>(SB), NOPTR, $%d\n",
		set.name(), 8*len(operations)*len(elements))
	return p.Bytes()
}

// entry writes the function that Go calls. It jumps to a kernel, which returns to Go. On a thread
// with other arithmetic settings, it calls the kernel and restores them. It uses the space of
// arguments that have been read as scratch.
func entry(p *program, set vectors) {
	fmt.Fprintf(p, "// func reduce%s(kernel uint32, dsts *unsafe.Pointer, ndst int, "+
		"srcs *unsafe.Pointer, nsrc int, from, to int, flags uint64, last *division)\n", set.name())
	fmt.Fprintf(p, "TEXT ·reduce%s(SB), NOSPLIT|NOFRAME, $0-72\n", set.name())
	p.op("MOVL", "kernel+0(FP)", "AX")
	arguments := [][2]string{
		{"dsts+8", "DI"},
		{"ndst+16", "R8"},
		{"srcs+24", "SI"},
		{"nsrc+32", "R9"},
		{"from+40", "R10"},
		{"to+48", "R11"},
		{"flags+56", "BX"},
		{"last+64", "DX"},
	}
	for _, a := range arguments {
		p.op("MOVQ", a[0]+"(FP)", a[1])
	}
	p.op("LEAQ", "kernels"+set.name()+"<>(SB)", "CX")
	p.op("MOVQ", "(CX)(AX*8)", "AX")
	p.op("VMOVUPS", trialAt(set, 0), "X0")
	p.op("VADDPS", trialAt(set, 1), "X0", "X0")
	p.op("VPXOR", trialAt(set, 2), "X0", "X0")
	p.op("VPTEST", "X0", "X0")
	p.op("JNE", "own")
	p.op("JMP", "AX")
	p.label("own")
	p.op("STMXCSR", "kernel+0(FP)")
	p.op("MOVQ", "$0x1F80", "dsts+8(FP)") // the value after a reset
	p.op("LDMXCSR", "dsts+8(FP)")
	p.op("CALL", "AX")
	p.op("LDMXCSR", "kernel+0(FP)")
	p.op("RET")
	fmt.Fprintln(p)
	for row, values := range trial {
		for lane, value := range values {
			fmt.Fprintf(p, "DATA trial%s<>+%d(SB)/4, $%#x\n", set.name(), 16*row+4*lane, value)
		}
	}
	fmt.Fprintf(p, "GLOBL trial%s<>(SB), RODATA|NOPTR, $48\n\n", set.name())
}

// trial is two vectors and their sum according to IEEE 754. The first lane detects whether the
// thread flushes subnormal operands or results to zero, as after torch.set_flush_denormal, the
// others whether it rounds to nearest even. Reading MXCSR instead would wait for all earlier
// arithmetic: some 20 ns, measured.
var trial = [3][4]uint32{
	{1, 0x3F800000, 0xBF800000, 0x3F800001},
	{1, 0x33800000, 0xB3800000, 0x33800000},
	{2, 0x3F800000, 0xBF800000, 0x3F800002},
}

func trialAt(set vectors, row int) string {
	return fmt.Sprintf("trial%s<>+%d(SB)", set.name(), 16*row)
}

// write appends one kernel.
func write(p *program, set vectors, k kernel) {
	block := k.units() * set.bytes()
	fmt.Fprintf(p, "TEXT %s, NOSPLIT|NOFRAME, $0-0\n", k.symbol(set))
	set.constants(p, k)
	p.op("MOVQ", "R11", "R12")
	p.op("SUBQ", fmt.Sprintf("$%d", block), "R12")
	p.op("CMPQ", "R10", "R12")
	p.op("JGT", "rest")

	late := &program{}
	stage := stage{p, late, set, k, "block", k.units(), whole}
	stage.pairs()
	p.label("block")
	stage.write()
	p.op("ADDQ", fmt.Sprintf("$%d", block), "R10")
	p.op("CMPQ", "R10", "R12")
	p.op("JLE", "block")

	stage.prefix, stage.units = "rest", 1
	p.label("rest")
	p.op("CMPQ", "R10", "R11")
	p.op("JGE", "done")
	if set.masks() {
		stage.how = masked
		lastLanes(p, set, k)
	}
	stage.write()
	p.op("ADDQ", fmt.Sprintf("$%d", set.bytes()), "R10")
	p.op("JMP", "rest")
	p.label("done")
	if set.cleanUp() != "" {
		p.op(set.cleanUp())
	}
	p.op("RET")
	fmt.Fprintln(p, late)
}

// lastLanes sets K1 to the lanes of one vector that lie before R11.
func lastLanes(p *program, set vectors, k kernel) {
	shift := map[int]int{1: 0, 2: 1, 4: 2, 8: 3}[k.elem.size]
	p.op("MOVQ", "R11", "CX")
	p.op("SUBQ", "R10", "CX")
	p.op("MOVL", fmt.Sprintf("$%d", set.bytes()), "AX")
	p.op("CMPQ", "CX", "AX")
	p.op("CMOVQGT", "AX", "CX")
	if shift > 0 {
		p.op("SHRL", fmt.Sprintf("$%d", shift), "CX")
	}
	p.op("MOVQ", "$-1", "AX")
	p.op("BZHIQ", "CX", "AX", "AX")
	p.op("KMOVQ", "AX", "K1")
}

// A stage is the text that moves some units from all sources to all destinations.
type stage struct {
	*program
	late   *program // the code after the return
	set    vectors
	kernel kernel
	prefix string // of labels
	units  int
	how    manner
}

// pairs writes the loops over blocks for two sources and one or two destinations, the most common
// shapes, with their pointers in registers. With one destination that is up to a third faster in
// the L1 cache; with two, storing vectors alternately is 7 % faster in the L2 cache. The text falls
// through for other shapes.
func (s *stage) pairs() {
	s.op("CMPQ", "R9", "$2")
	s.op("JNE", "block")
	s.op("CMPQ", "R8", "$2")
	s.op("JGT", "block")
	s.op("TESTL", "BX", "BX")
	s.op("JNE", "block")
	s.op("MOVQ", "(SI)", "AX")
	s.op("MOVQ", "8(SI)", "CX")
	s.op("MOVQ", "(DI)", "R13")
	s.op("CMPQ", "R8", "$1")
	s.op("JNE", "twins")
	s.pair("pair", "R13")

	behind := &program{}
	late := stage{s.late, behind, s.set, s.kernel, s.prefix, s.units, s.how}
	late.label("twins")
	late.op("MOVQ", "8(DI)", "DX")
	late.pair("twin", "R13", "DX")
	s.late.Write(behind.Bytes())
}

// pair writes one of those loops. If results are stored in the type of the accumulators, they are
// stored before the check for NaNs, and once more if there are any, so that loads and stores
// alternate.
func (s *stage) pair(label string, results ...string) {
	s.label(label)
	for unit := range s.units {
		left, right := s.indexed(unit, "AX"), s.indexed(unit, "CX")
		s.ahead(left)
		s.ahead(right)
		s.set.load(s.program, s.kernel, unit, left, whole)
		s.set.combine(s.program, s.kernel, unit, right, whole)
		if !s.kernel.elem.half {
			s.storePair(s.program, unit, results)
		}
	}
	if s.kernel.elem.half {
		s.clear(label, nil)
		for unit := range s.units {
			s.set.pack(s.program, s.kernel, unit)
			s.storePair(s.program, unit, results)
		}
	} else {
		s.clear(label, results)
	}
	s.op("ADDQ", fmt.Sprintf("$%d", s.units*s.set.bytes()), "R10")
	s.op("CMPQ", "R10", "R12")
	s.op("JLE", label)
	s.op("JMP", "rest")
}

func (s *stage) storePair(p *program, unit int, results []string) {
	for _, result := range results {
		s.set.store(p, s.kernel, unit, s.indexed(unit, result), whole)
	}
}

// indexed returns the address of a unit at R10 bytes after a pointer.
func (s *stage) indexed(unit int, pointer string) string {
	return fmt.Sprintf("%d(%s)(R10*1)", unit*s.set.bytes(), pointer)
}

func (s *stage) write() {
	s.op("MOVQ", "(SI)", "AX")
	s.op("ADDQ", "R10", "AX")
	s.each(func(unit int, address string) {
		s.ahead(address)
		s.set.load(s.program, s.kernel, unit, address, s.how)
	})
	s.op("MOVL", "$1", "CX")
	s.op("CMPQ", "CX", "R9")
	s.op("JGE", s.prefix+"Final")

	s.label(s.prefix + "Source")
	s.op("MOVQ", "(SI)(CX*8)", "AX")
	s.op("ADDQ", "R10", "AX")
	s.op("INCQ", "CX")
	s.each(func(unit int, address string) {
		s.ahead(address)
		s.set.combine(s.program, s.kernel, unit, address, s.how)
	})
	s.op("CMPQ", "CX", "R9")
	s.op("JLT", s.prefix+"Source")

	s.label(s.prefix + "Final")
	if s.kernel.finalStep() {
		s.final()
	}
	s.clear(s.prefix, nil)
	s.each(func(unit int, _ string) { s.set.pack(s.program, s.kernel, unit) })
	s.store()
}

// clear replaces NaNs by the canonical one, and stores the given results again. A single check for
// NaNs covers the whole block.
func (s *stage) clear(label string, results []string) {
	if !s.kernel.elem.float {
		return
	}
	s.set.unlessNaN(s.program, s.kernel, s.units, label+"NaN")
	s.label(label + "Clear")

	s.late.label(label + "NaN")
	s.set.canonical(s.late, s.kernel, s.units)
	for unit := range s.units {
		s.storePair(s.late, unit, results)
	}
	s.late.op("JMP", label+"Clear")
}

// ahead prefetches a line that a later block will load. Kernels of 16-bit floats have many
// instructions per line, so that the processor does not look far enough ahead; for other types it
// does, and a prefetch would only cost time.
func (s *stage) ahead(address string) {
	const distance = 1024
	if s.kernel.elem.half && s.how == whole {
		s.op("PREFETCHT0", above(address, distance))
	}
}

// final writes the step after the accumulation. Rare steps are placed after the return, so that a
// block without them takes no branch except the one to the next block.
func (s *stage) final() {
	s.op("TESTL", "$6", "BX")
	s.op("JNE", s.prefix+"Multiply")
	s.label(s.prefix + "Pack")

	late := stage{s.late, s.late, s.set, s.kernel, s.prefix, s.units, s.how}
	late.label(s.prefix + "Multiply")
	late.set.operand(s.late, s.kernel, "(DX)")
	late.op("TESTL", "$4", "BX")
	late.op("JNE", s.prefix+"Divide")
	late.finalAll("VMUL")
	late.op("JMP", s.prefix+"Check")
	late.label(s.prefix + "Divide")
	late.finalAll("VDIV")
	late.label(s.prefix + "Check")
	late.op("TESTL", "$8", "BX")
	late.op("JEQ", s.prefix+"Pack")
	late.set.unlessFinite(s.late, s.kernel, s.units, s.prefix+"Stop")
	late.op("JMP", s.prefix+"Clear")
	late.label(s.prefix + "Stop")
	late.op("MOVQ", "R10", "8(DX)")
	if s.set.cleanUp() != "" {
		late.op(s.set.cleanUp())
	}
	late.op("RET")
}

func (s *stage) finalAll(instruction string) {
	for i := range s.kernel.registers(s.units) {
		acc := s.set.register(i)
		s.op(instruction+s.kernel.elem.lane, s.set.register(15), acc, acc)
	}
}

// store writes the loop over destinations. A streamed range consists of whole lines, so it needs no
// mask.
func (s *stage) store() {
	s.op("XORL", "CX", "CX")
	s.label(s.prefix + "Destination")
	s.op("MOVQ", "(DI)(CX*8)", "AX")
	s.op("ADDQ", "R10", "AX")
	s.op("INCQ", "CX")
	s.op("TESTL", "$1", "BX")
	s.op("JNE", s.prefix+"Stream")
	s.storeAll(s.how)
	s.label(s.prefix + "Next")

	late := stage{s.late, s.late, s.set, s.kernel, s.prefix, s.units, s.how}
	late.label(s.prefix + "Stream")
	late.storeAll(streamed)
	late.op("JMP", s.prefix+"Next")
}

func (s *stage) storeAll(how manner) {
	s.each(func(unit int, address string) { s.set.store(s.program, s.kernel, unit, address, how) })
	s.op("CMPQ", "CX", "R8")
	s.op("JLT", s.prefix+"Destination")
}

// each calls emit for every unit with its address relative to AX.
func (s *stage) each(emit func(unit int, address string)) {
	for unit := range s.units {
		emit(unit, fmt.Sprintf("%d(AX)", unit*s.set.bytes()))
	}
}

// above adds bytes to the displacement of an address.
func above(address string, bytes int) string {
	var displacement int
	var base string
	if _, err := fmt.Sscanf(address, "%d%s", &displacement, &base); err != nil {
		panic(fmt.Sprintf("address %q: %v", address, err))
	}
	return fmt.Sprintf("%d%s", displacement+bytes, base)
}
