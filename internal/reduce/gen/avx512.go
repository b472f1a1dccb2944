package main

import "fmt"

// avx512 generates code for the AVX-512 subsets F, BW, VL and DQ, and for BMI2. As everywhere in
// Go assembly, the destination is the last operand.
type avx512 struct{}

// Predicates of VCMP. Two lanes are unordered if either of them is a NaN.
const (
	compareUnordered = "$3"
	compareOrdered   = "$7"
)

func (avx512) setName() string            { return "AVX512" }
func (avx512) vectorBytes() int           { return 64 }
func (avx512) hasMasks() bool             { return true }
func (avx512) cleanUpInstruction() string { return "" }
func (avx512) registerName(i int) string  { return zmm(i) }

// zmm returns the name of vector register i. The package comment in main.go lists the registers.
func zmm(i int) string { return fmt.Sprintf("Z%d", 16+i) }

// lowerHalf returns the name of the lower half of vector register i.
func lowerHalf(i int) string { return fmt.Sprintf("Y%d", 16+i) }

// broadcastConstant512 sets all lanes of a register to value. lane is W (16 bits) or D (32 bits).
func broadcastConstant512(p *program, lane string, value uint32, register string) {
	p.emit("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.emit("VPBROADCAST"+lane, "AX", register)
}

func (avx512) loadConstants(p *program, k kernel) {
	switch {
	case k.element.name == "BFloat16":
		broadcastConstant512(p, "D", 0xFFFF0000, zmm(12)) // mask of the odd elements
		broadcastConstant512(p, "D", 1, zmm(13))          // for rounding
		broadcastConstant512(p, "D", 0x7FFF, zmm(14))     // for rounding
	case k.operation.name == "Prod" && k.element.size == 1:
		broadcastConstant512(p, "W", 0xFF00, zmm(12)) // mask of the odd bytes
	}
}

func (avx512) loadOperand(p *program, k kernel, address string) {
	suffix := map[bool]string{true: "Q", false: "D"}[k.element.size == 8]
	p.emit("VPBROADCAST"+suffix, address, zmm(15))
}

// jumpIfNotFinite subtracts each accumulator from itself, which gives 0 in finite lanes and a NaN
// in others. It combines the differences with OR, which preserves NaNs.
func (avx512) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	for i := range k.registers(units) {
		if i == 0 {
			p.emit("VSUB"+k.element.laneSuffix, zmm(i), zmm(i), zmm(8))
			continue
		}
		p.emit("VSUB"+k.element.laneSuffix, zmm(i), zmm(i), zmm(9))
		p.emit("VPORD", zmm(9), zmm(8), zmm(8))
	}
	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, zmm(8), zmm(8), "K2")
	p.emit("KORTESTW", "K2", "K2") // clears the zero flag if a bit is set
	p.emit("JNE", label)
}

func (avx512) loadVector(p *program, k kernel, address, register string, mode access) {
	move := fmt.Sprintf("VMOVDQU%d", 8*k.element.size)
	if mode == accessMasked {
		p.emit(move+".Z", address, "K1", register)
		return
	}
	p.emit(move, address, register)
}

// loadAsFloat32 converts a unit of 16-bit floats to float32 in two registers. The low register
// gets the first half of the Float16 elements, or the even BFloat16 elements, which needs no
// shuffle.
func (s avx512) loadAsFloat32(p *program, k kernel, address string, low, high int, mode access) {
	if mode == accessMasked {
		s.loadVector(p, k, address, zmm(11), mode)
		address = zmm(11)
	}
	switch {
	case k.element.name == "BFloat16":
		p.emit("VPANDD", address, zmm(12), zmm(high))
		p.emit("VPSLLD", "$16", address, zmm(low))
	case mode == accessMasked:
		p.emit("VCVTPH2PS", lowerHalf(11), zmm(low))
		p.emit("VEXTRACTI64X4", "$1", zmm(11), lowerHalf(11))
		p.emit("VCVTPH2PS", lowerHalf(11), zmm(high))
	default:
		p.emit("VCVTPH2PS", address, zmm(low))
		p.emit("VCVTPH2PS", addBytes(address, 32), zmm(high))
	}
}

func (s avx512) load(p *program, k kernel, unit int, address string, mode access) {
	if k.element.is16Bit {
		s.loadAsFloat32(p, k, address, 2*unit, 2*unit+1, mode)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	s.loadVector(p, k, address, zmm(unit), mode)
	multiply(p, s, k, unit)
}

func (s avx512) combine(p *program, k kernel, unit int, address string, mode access) {
	switch {
	case k.element.is16Bit:
		s.loadAsFloat32(p, k, address, 8, 9, mode)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, zmm(8), 2*unit)
		s.lanes(p, k, zmm(9), 2*unit+1)
	case mode == accessMasked || needsRegister(k):
		s.loadVector(p, k, address, zmm(8), mode)
		multiply(p, s, k, 8)
		s.lanes(p, k, zmm(8), unit)
	default:
		s.lanes(p, k, address, unit)
	}
}

// needsRegister reports whether combine must load elements into a register first, because the
// operation changes them or reads them twice.
func needsRegister(k kernel) bool {
	isMinOrMax := k.operation.name == "Min" || k.operation.name == "Max"
	isByteProduct := k.operation.name == "Prod" && k.element.size == 1
	return k.operation.isScaled || isByteProduct || (isMinOrMax && k.element.isFloat)
}

// lanes emits code that combines accumulator acc, as the left operand, with another operand.
func (avx512) lanes(p *program, k kernel, operand string, acc int) {
	switch {
	case k.element.isFloat && (k.operation.name == "Min" || k.operation.name == "Max"):
		// rangeControl selects the minimum (0) or maximum (1). Adding 4 to it orders -0 before +0.
		// If a lane has a NaN, its operands are added, so that the result is a NaN.
		rangeControl := map[string]string{"Min": "$4", "Max": "$5"}[k.operation.name]
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, operand, zmm(acc), "K2")
		p.emit("VRANGE"+k.element.laneSuffix, rangeControl, operand, zmm(acc), zmm(10))
		p.emit("VADD"+k.element.laneSuffix, operand, zmm(acc), "K2", zmm(10))
		p.emit("VMOVAPS", zmm(10), zmm(acc))
	case k.operation.name == "Prod" && k.element.size == 1:
		// Register 10 gets the products of the even bytes, and acc those of the odd bytes. The last
		// instruction computes acc OR (register 10 AND NOT mask). Its constant is the truth table.
		p.emit("VPMULLW", operand, zmm(acc), zmm(10))
		p.emit("VPSRLW", "$8", zmm(acc), zmm(acc))
		p.emit("VPANDD", operand, zmm(12), operand)
		p.emit("VPMULLW", operand, zmm(acc), zmm(acc))
		p.emit("VPTERNLOGD", "$0xF4", zmm(12), zmm(10), zmm(acc))
	default:
		p.emit(k.instruction("D"), operand, zmm(acc), zmm(acc))
	}
}

// jumpIfNaN compares pairs of accumulators. A bit of K2 is set if its lane is ordered in all
// pairs.
func (avx512) jumpIfNaN(p *program, k kernel, units int, label string) {
	n := k.registers(units)
	testInstruction := map[bool]string{true: "KORTESTB", false: "KORTESTW"}[k.element.size == 8]
	for i := 0; i < n; i += 2 {
		left, right := zmm(i), zmm(min(i+1, n-1))
		if i == 0 {
			p.emit("VCMP"+k.element.laneSuffix, compareOrdered, left, right, "K2")
		} else {
			p.emit("VCMP"+k.element.laneSuffix, compareOrdered, left, right, "K2", "K2")
		}
	}
	p.emit(testInstruction, "K2", "K2") // sets the carry flag if all bits are set
	p.emit("JCC", label)
}

func (avx512) replaceNaNs(p *program, k kernel, units int) {
	lane := map[bool]string{true: "Q", false: "D"}[k.element.size == 8]
	p.emit("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.emit("VPBROADCAST"+lane, "R14", zmm(8))
	for i := range k.registers(units) {
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, zmm(i), zmm(i), "K2")
		p.emit("VMOVA"+k.element.laneSuffix, zmm(8), "K2", zmm(i))
	}
}

func (avx512) packAccumulators(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.element.name {
	case "Float16":
		const nearestEven = "$0"
		p.emit("VCVTPS2PH", nearestEven, zmm(low), lowerHalf(low))
		p.emit("VCVTPS2PH", nearestEven, zmm(high), lowerHalf(high))
		p.emit("VINSERTI64X4", "$1", lowerHalf(high), zmm(low), zmm(low))
	case "BFloat16":
		// Adding 0x7FFF plus the lowest bit that is kept rounds to nearest even.
		for _, acc := range []int{low, high} {
			p.emit("VPSRLD", "$16", zmm(acc), zmm(8))
			p.emit("VPANDD", zmm(13), zmm(8), zmm(8))
			p.emit("VPADDD", zmm(14), zmm(8), zmm(8))
			p.emit("VPADDD", zmm(8), zmm(acc), zmm(acc))
		}
		p.emit("VPSRLD", "$16", zmm(low), zmm(low))
		p.emit("VPTERNLOGD", "$0xF8", zmm(12), zmm(high), zmm(low)) // low OR (high AND mask)
	}
}

func (avx512) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := zmm(unit), fmt.Sprintf("VMOVDQU%d", 8*k.element.size)
	if k.element.is16Bit {
		register = zmm(2 * unit)
	}
	switch mode {
	case accessMasked:
		p.emit(move, register, "K1", address)
	case accessStreamed:
		p.emit("VMOVNTDQ", register, address)
	default:
		p.emit(move, register, address)
	}
}
