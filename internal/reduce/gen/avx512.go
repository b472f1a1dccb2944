package main

import "fmt"

// avx512 generates code for the AVX-512 subsets F, BW, VL and DQ, and for BMI2.
type avx512 struct{}

func (avx512) name() string          { return "AVX512" }
func (avx512) bytes() int            { return 64 }
func (avx512) hasMasks() bool        { return true }
func (avx512) cleanUp() string       { return "" }
func (avx512) register(i int) string { return zmm(i) }

// zmm returns the name of vector register i, as numbered in main.go. ymmLow returns the name of its
// lower half.
func zmm(i int) string    { return fmt.Sprintf("Z%d", 16+i) }
func ymmLow(i int) string { return fmt.Sprintf("Y%d", 16+i) }

func broadcast(p *program, lane string, value uint32, register string) {
	p.op("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.op("VPBROADCAST"+lane, "AX", register)
}

func (avx512) constants(p *program, k kernel) {
	switch {
	case k.elem.name == "BFloat16":
		broadcast(p, "D", 0xFFFF0000, zmm(12))
		broadcast(p, "D", 1, zmm(13))
		broadcast(p, "D", 0x7FFF, zmm(14))
	case k.op.name == "Prod" && k.elem.size == 1:
		broadcast(p, "W", 0xFF00, zmm(12))
	}
}

func (avx512) operand(p *program, k kernel, address string) {
	suffix := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("VPBROADCAST"+suffix, address, zmm(15))
}

// jumpIfNotFinite subtracts each accumulator from itself, which gives a NaN unless it is finite.
func (avx512) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	for i := range k.registers(units) {
		if i == 0 {
			p.op("VSUB"+k.elem.lane, zmm(i), zmm(i), zmm(8))
			continue
		}
		p.op("VSUB"+k.elem.lane, zmm(i), zmm(i), zmm(9))
		p.op("VPORD", zmm(9), zmm(8), zmm(8))
	}
	p.op("VCMP"+k.elem.lane, unordered, zmm(8), zmm(8), "K2")
	p.op("KORTESTW", "K2", "K2")
	p.op("JNE", label)
}

// fetch loads a vector from memory without conversion.
func (avx512) fetch(p *program, k kernel, address, register string, mode access) {
	move := fmt.Sprintf("VMOVDQU%d", 8*k.elem.size)
	if mode == accessMasked {
		p.op(move+".Z", address, "K1", register)
		return
	}
	p.op(move, address, register)
}

// widen loads a vector of 16-bit floats into two registers of float32. For BFloat16, they get the
// even and the odd elements, because this avoids a shuffle.
func (s avx512) widen(p *program, k kernel, address string, low, high int, mode access) {
	if mode == accessMasked {
		s.fetch(p, k, address, zmm(11), mode)
		address = zmm(11)
	}
	switch {
	case k.elem.name == "BFloat16":
		p.op("VPANDD", address, zmm(12), zmm(high))
		p.op("VPSLLD", "$16", address, zmm(low))
	case mode == accessMasked:
		p.op("VCVTPH2PS", ymmLow(11), zmm(low))
		p.op("VEXTRACTI64X4", "$1", zmm(11), ymmLow(11))
		p.op("VCVTPH2PS", ymmLow(11), zmm(high))
	default:
		p.op("VCVTPH2PS", address, zmm(low))
		p.op("VCVTPH2PS", addBytes(address, 32), zmm(high))
	}
}

func (s avx512) load(p *program, k kernel, unit int, address string, mode access) {
	if k.elem.half {
		s.widen(p, k, address, 2*unit, 2*unit+1, mode)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	s.fetch(p, k, address, zmm(unit), mode)
	multiply(p, s, k, unit)
}

func (s avx512) combine(p *program, k kernel, unit int, address string, mode access) {
	switch {
	case k.elem.half:
		s.widen(p, k, address, 8, 9, mode)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, zmm(8), 2*unit)
		s.lanes(p, k, zmm(9), 2*unit+1)
	case mode == accessMasked || needsRegister(k):
		s.fetch(p, k, address, zmm(8), mode)
		multiply(p, s, k, 8)
		s.lanes(p, k, zmm(8), unit)
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
		// Bit 2 of choice makes the instruction order the zeros. If a lane has a NaN, its operands
		// are added, which propagates NaNs.
		choice := map[string]string{"Min": "$4", "Max": "$5"}[k.op.name]
		p.op("VCMP"+k.elem.lane, "$3", operand, zmm(acc), "K2")
		p.op("VRANGE"+k.elem.lane, choice, operand, zmm(acc), zmm(10))
		p.op("VADD"+k.elem.lane, operand, zmm(acc), "K2", zmm(10))
		p.op("VMOVAPS", zmm(10), zmm(acc))
	case k.op.name == "Prod" && k.elem.size == 1:
		// The last instruction combines the products of the even and the odd bytes.
		p.op("VPMULLW", operand, zmm(acc), zmm(10))
		p.op("VPSRLW", "$8", zmm(acc), zmm(acc))
		p.op("VPANDD", operand, zmm(12), operand)
		p.op("VPMULLW", operand, zmm(acc), zmm(acc))
		p.op("VPTERNLOGD", "$0xF4", zmm(12), zmm(10), zmm(acc))
	default:
		p.op(k.instruction("D"), operand, zmm(acc), zmm(acc))
	}
}

// jumpIfNaN compares accumulators in pairs: two lanes are unordered if either is a NaN.
func (avx512) jumpIfNaN(p *program, k kernel, units int, label string) {
	const ordered = "$7"
	n := k.registers(units)
	test := map[bool]string{true: "KORTESTB", false: "KORTESTW"}[k.elem.size == 8]
	for i := 0; i < n; i += 2 {
		left, right := zmm(i), zmm(min(i+1, n-1))
		if i == 0 {
			p.op("VCMP"+k.elem.lane, ordered, left, right, "K2")
		} else {
			p.op("VCMP"+k.elem.lane, ordered, left, right, "K2", "K2")
		}
	}
	p.op(test, "K2", "K2") // sets the carry flag if all bits are set
	p.op("JCC", label)
}

func (avx512) replaceNaNs(p *program, k kernel, units int) {
	const unordered = "$3"
	lane := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.op("VPBROADCAST"+lane, "R14", zmm(8))
	for i := range k.registers(units) {
		p.op("VCMP"+k.elem.lane, unordered, zmm(i), zmm(i), "K2")
		p.op("VMOVA"+k.elem.lane, zmm(8), "K2", zmm(i))
	}
}

func (avx512) pack(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.elem.name {
	case "Float16":
		p.op("VCVTPS2PH", "$0", zmm(low), ymmLow(low))
		p.op("VCVTPS2PH", "$0", zmm(high), ymmLow(high))
		p.op("VINSERTI64X4", "$1", ymmLow(high), zmm(low), zmm(low))
	case "BFloat16":
		// To round to nearest even, the code adds 0x7FFF plus the last bit that is kept.
		for _, acc := range []int{low, high} {
			p.op("VPSRLD", "$16", zmm(acc), zmm(8))
			p.op("VPANDD", zmm(13), zmm(8), zmm(8))
			p.op("VPADDD", zmm(14), zmm(8), zmm(8))
			p.op("VPADDD", zmm(8), zmm(acc), zmm(acc))
		}
		p.op("VPSRLD", "$16", zmm(low), zmm(low))
		p.op("VPTERNLOGD", "$0xF8", zmm(12), zmm(high), zmm(low))
	}
}

func (avx512) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := zmm(unit), fmt.Sprintf("VMOVDQU%d", 8*k.elem.size)
	if k.elem.half {
		register = zmm(2 * unit)
	}
	switch mode {
	case accessMasked:
		p.op(move, register, "K1", address)
	case accessStreamed:
		p.op("VMOVNTDQ", register, address)
	default:
		p.op(move, register, address)
	}
}
