package main

import "fmt"

// avx512 generates code for the AVX-512 subsets F, BW, VL and DQ, and for BMI2.
type avx512 struct{}

func (avx512) name() string          { return "AVX512" }
func (avx512) bytes() int            { return 64 }
func (avx512) masks() bool           { return true }
func (avx512) cleanUp() string       { return "" }
func (avx512) register(i int) string { return z(i) }

// z returns the name of vector register i, as numbered in the comment in main.go. y returns the
// name of its lower half.
func z(i int) string { return fmt.Sprintf("Z%d", 16+i) }
func y(i int) string { return fmt.Sprintf("Y%d", 16+i) }

func broadcast(p *program, lane string, value uint32, register string) {
	p.op("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.op("VPBROADCAST"+lane, "AX", register)
}

func (avx512) constants(p *program, k kernel) {
	switch {
	case k.elem.name == "BFloat16":
		broadcast(p, "D", 0xFFFF0000, z(12))
		broadcast(p, "D", 1, z(13))
		broadcast(p, "D", 0x7FFF, z(14))
	case k.op.name == "Prod" && k.elem.size == 1:
		broadcast(p, "W", 0xFF00, z(12))
	}
}

func (avx512) operand(p *program, k kernel, address string) {
	suffix := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("VPBROADCAST"+suffix, address, z(15))
}

// jumpIfNotFinite subtracts each accumulator from itself, which gives zero if the value is finite,
// and a NaN if not.
func (avx512) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	for i := range k.registers(units) {
		if i == 0 {
			p.op("VSUB"+k.elem.lane, z(i), z(i), z(8))
			continue
		}
		p.op("VSUB"+k.elem.lane, z(i), z(i), z(9))
		p.op("VPORD", z(9), z(8), z(8))
	}
	p.op("VCMP"+k.elem.lane, unordered, z(8), z(8), "K2")
	p.op("KORTESTW", "K2", "K2")
	p.op("JNE", label)
}

// fetch loads a vector from memory without conversion.
func (avx512) fetch(p *program, k kernel, address, register string, how access) {
	move := fmt.Sprintf("VMOVDQU%d", 8*k.elem.size)
	if how == masked {
		p.op(move+".Z", address, "K1", register)
		return
	}
	p.op(move, address, register)
}

// widen loads a vector of 16-bit floats into two registers of float32. For Float16, the registers
// get the lower and the upper half of the vector. For BFloat16, they get the even and the odd
// elements, because this avoids a shuffle.
func (s avx512) widen(p *program, k kernel, address string, low, high int, how access) {
	if how == masked {
		s.fetch(p, k, address, z(11), how)
		address = z(11)
	}
	switch {
	case k.elem.name == "BFloat16":
		p.op("VPANDD", address, z(12), z(high))
		p.op("VPSLLD", "$16", address, z(low))
	case how == masked:
		p.op("VCVTPH2PS", y(11), z(low))
		p.op("VEXTRACTI64X4", "$1", z(11), y(11))
		p.op("VCVTPH2PS", y(11), z(high))
	default:
		p.op("VCVTPH2PS", address, z(low))
		p.op("VCVTPH2PS", addBytes(address, 32), z(high))
	}
}

func (s avx512) load(p *program, k kernel, unit int, address string, how access) {
	if k.elem.half {
		s.widen(p, k, address, 2*unit, 2*unit+1, how)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	s.fetch(p, k, address, z(unit), how)
	multiply(p, s, k, unit)
}

func (s avx512) combine(p *program, k kernel, unit int, address string, how access) {
	switch {
	case k.elem.half:
		s.widen(p, k, address, 8, 9, how)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, z(8), 2*unit)
		s.lanes(p, k, z(9), 2*unit+1)
	case how == masked || needsRegister(k):
		s.fetch(p, k, address, z(8), how)
		multiply(p, s, k, 8)
		s.lanes(p, k, z(8), unit)
	default:
		s.lanes(p, k, address, unit)
	}
}

// needsRegister reports whether the operation changes its operand or reads it more than once.
func needsRegister(k kernel) bool {
	extreme := k.op.name == "Min" || k.op.name == "Max"
	return extreme && k.elem.float || k.op.name == "Prod" && k.elem.size == 1 || k.op.scaled
}

// lanes combines an operand with an accumulator, which is the left operand.
func (avx512) lanes(p *program, k kernel, operand string, acc int) {
	switch {
	case k.elem.float && (k.op.name == "Min" || k.op.name == "Max"):
		// Bit 2 of choice makes the instruction take the sign from the result of the comparison, which
		// orders the zeros. If a lane has a NaN, its operands are added instead, because addition
		// propagates NaNs.
		choice := map[string]string{"Min": "$4", "Max": "$5"}[k.op.name]
		p.op("VCMP"+k.elem.lane, "$3", operand, z(acc), "K2")
		p.op("VRANGE"+k.elem.lane, choice, operand, z(acc), z(10))
		p.op("VADD"+k.elem.lane, operand, z(acc), "K2", z(10))
		p.op("VMOVAPS", z(10), z(acc))
	case k.op.name == "Prod" && k.elem.size == 1:
		// The first product is that of the even bytes, the shifted product is that of the odd
		// bytes, and the last instruction combines the two.
		p.op("VPMULLW", operand, z(acc), z(10))
		p.op("VPSRLW", "$8", z(acc), z(acc))
		p.op("VPANDD", operand, z(12), operand)
		p.op("VPMULLW", operand, z(acc), z(acc))
		p.op("VPTERNLOGD", "$0xF4", z(12), z(10), z(acc))
	default:
		p.op(k.instruction("D"), operand, z(acc), z(acc))
	}
}

// jumpIfNaN compares accumulators in pairs: two lanes are unordered if either is a NaN.
func (avx512) jumpIfNaN(p *program, k kernel, units int, label string) {
	const ordered = "$7"
	n := k.registers(units)
	test := map[bool]string{true: "KORTESTB", false: "KORTESTW"}[k.elem.size == 8]
	for i := 0; i < n; i += 2 {
		left, right := z(i), z(min(i+1, n-1))
		if i == 0 {
			p.op("VCMP"+k.elem.lane, ordered, left, right, "K2")
		} else {
			p.op("VCMP"+k.elem.lane, ordered, left, right, "K2", "K2")
		}
	}
	p.op(test, "K2", "K2") // sets the carry flag if all bits are set
	p.op("JCC", label)
}

func (avx512) canonical(p *program, k kernel, units int) {
	const unordered = "$3"
	lane := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.op("VPBROADCAST"+lane, "R14", z(8))
	for i := range k.registers(units) {
		p.op("VCMP"+k.elem.lane, unordered, z(i), z(i), "K2")
		p.op("VMOVA"+k.elem.lane, z(8), "K2", z(i))
	}
}

func (avx512) pack(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.elem.name {
	case "Float16":
		p.op("VCVTPS2PH", "$0", z(low), y(low))
		p.op("VCVTPS2PH", "$0", z(high), y(high))
		p.op("VINSERTI64X4", "$1", y(high), z(low), z(low))
	case "BFloat16":
		// To round to nearest even, the code adds 0x7FFF plus the last bit that is kept. For the
		// canonical NaN, this addition does not carry.
		for _, acc := range []int{low, high} {
			p.op("VPSRLD", "$16", z(acc), z(8))
			p.op("VPANDD", z(13), z(8), z(8))
			p.op("VPADDD", z(14), z(8), z(8))
			p.op("VPADDD", z(8), z(acc), z(acc))
		}
		p.op("VPSRLD", "$16", z(low), z(low))
		p.op("VPTERNLOGD", "$0xF8", z(12), z(high), z(low))
	}
}

func (avx512) store(p *program, k kernel, unit int, address string, how access) {
	register, move := z(unit), fmt.Sprintf("VMOVDQU%d", 8*k.elem.size)
	if k.elem.half {
		register = z(2 * unit)
	}
	switch how {
	case masked:
		p.op(move, register, "K1", address)
	case streamed:
		p.op("VMOVNTDQ", register, address)
	default:
		p.op(move, register, address)
	}
}
