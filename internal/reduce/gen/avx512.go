package main

import "fmt"

// avx512 generates code for the AVX-512 subsets F, BW, VL and DQ, and for BMI2. Its methods are
// documented by instructionSet. In Go assembly, the destination is the last operand.
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

// zmm returns the name of vector register i. Registers 0 to 7 are accumulators, and 8 to 11 are
// scratch. 12 to 14 hold the constants from loadConstants, and 15 the operand from loadOperand.
// They are Z16 to Z31, because these need no VZEROUPPER before the return.
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

// broadcastLane returns the suffix of VPBROADCAST for a lane of an accumulator of floats.
func broadcastLane(k kernel) string {
	if k.element.size == 8 {
		return "Q" // 64 bits
	}

	return "D" // 32 bits
}

func (avx512) loadOperand(p *program, k kernel, address string) {
	p.emit("VPBROADCAST"+broadcastLane(k), address, zmm(operandRegister))
}

// jumpIfNotFinite subtracts each accumulator from itself, which gives 0 in finite lanes and a NaN
// in others. It combines the differences with OR, which preserves NaNs.
func (avx512) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	all, next := zmm(8), zmm(9)
	for i := range k.accumulatorCount(units) {
		acc := zmm(i)
		if i == 0 {
			p.emit("VSUB"+k.element.laneSuffix, acc, acc, all)
			continue
		}

		p.emit("VSUB"+k.element.laneSuffix, acc, acc, next)
		p.emit("VPORD", next, all, all)
	}

	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, all, all, "K2")
	p.emit("KORTESTW", "K2", "K2") // clears the zero flag if a bit is set
	p.emit("JNE", label)
}

// loadVector loads a unit. In masked access, it sets the elements outside the mask in K1 to 0.
func (avx512) loadVector(p *program, k kernel, address, register string, mode access) {
	move := fmt.Sprintf("VMOVDQU%d", 8*k.element.size)
	if mode == accessMasked {
		p.emit(move+".Z", address, "K1", register)
		return
	}

	p.emit(move, address, register)
}

// loadAsFloat32 converts a unit of 16-bit floats to float32 in two registers. The low register gets
// the first half of the Float16 elements. For BFloat16, it gets the even elements, which needs no
// shuffle.
func (s avx512) loadAsFloat32(p *program, k kernel, address string, low, high int, mode access) {
	const unit = 11 // a scratch register
	source := address
	if mode == accessMasked {
		s.loadVector(p, k, address, zmm(unit), mode)
		source = zmm(unit)
	}

	switch {
	case k.element.name == "BFloat16":
		oddMask := zmm(12)
		p.emit("VPANDD", source, oddMask, zmm(high))
		p.emit("VPSLLD", "$16", source, zmm(low))
	case mode == accessMasked:
		p.emit("VCVTPH2PS", lowerHalf(unit), zmm(low))
		p.emit("VEXTRACTI64X4", "$1", zmm(unit), lowerHalf(unit)) // moves the upper half
		p.emit("VCVTPH2PS", lowerHalf(unit), zmm(high))
	default:
		const halfBytes = 32
		p.emit("VCVTPH2PS", source, zmm(low))
		p.emit("VCVTPH2PS", addBytes(source, halfBytes), zmm(high))
	}
}

func (s avx512) load(p *program, k kernel, unit int, address string, mode access) {
	if k.element.is16Bit {
		low, high := 2*unit, 2*unit+1
		s.loadAsFloat32(p, k, address, low, high, mode)
		multiply(p, s, k, low, high)
		return
	}

	s.loadVector(p, k, address, zmm(unit), mode)
	multiply(p, s, k, unit)
}

func (s avx512) combine(p *program, k kernel, unit int, address string, mode access) {
	const low, high = 8, 9 // scratch registers
	switch {
	case k.element.is16Bit:
		s.loadAsFloat32(p, k, address, low, high, mode)
		multiply(p, s, k, low, high)
		s.combineLanes(p, k, zmm(low), 2*unit)
		s.combineLanes(p, k, zmm(high), 2*unit+1)
	case mode == accessMasked || needsRegister(k):
		s.loadVector(p, k, address, zmm(low), mode)
		multiply(p, s, k, low)
		s.combineLanes(p, k, zmm(low), unit)
	default:
		s.combineLanes(p, k, address, unit)
	}
}

// needsRegister reports whether combine must load elements into a register first, because the
// operation changes them or reads them twice.
func needsRegister(k kernel) bool {
	isFloatMinOrMax := k.element.isFloat &&
		(k.operation.name == "Min" || k.operation.name == "Max")
	isByteProduct := k.operation.name == "Prod" && k.element.size == 1
	return k.operation.isScaled || isByteProduct || isFloatMinOrMax
}

// combineLanes emits code that combines an accumulator, as the left operand, with another operand
// in memory or in a register. If needsRegister is true, the code may change the operand.
func (s avx512) combineLanes(p *program, k kernel, operand string, accumulator int) {
	acc := zmm(accumulator)
	isMinOrMax := k.operation.name == "Min" || k.operation.name == "Max"
	switch {
	case k.element.isFloat && isMinOrMax:
		s.minOrMax(p, k, operand, acc)
	case k.operation.name == "Prod" && k.element.size == 1:
		s.multiplyBytes(p, operand, acc)
	default:
		p.emit(k.instruction("D"), operand, acc, acc)
	}
}

// minOrMax computes the minimum or maximum of floats. If a lane has a NaN, its operands are added,
// so that the result is a NaN.
func (avx512) minOrMax(p *program, k kernel, operand, acc string) {
	// rangeControl selects the minimum (0) or maximum (1). Adding 4 to it orders -0 before +0.
	rangeControl := "$4"
	if k.operation.name == "Max" {
		rangeControl = "$5"
	}

	result, hasNaN := zmm(10), "K2"
	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, operand, acc, hasNaN)
	p.emit("VRANGE"+k.element.laneSuffix, rangeControl, operand, acc, result)
	p.emit("VADD"+k.element.laneSuffix, operand, acc, hasNaN, result)
	p.emit("VMOVAPS", result, acc)
}

// multiplyBytes multiplies integers of 8 bits, for which there is no instruction. It multiplies
// lanes of 16 bits: once for the even bytes, and once, after a shift, for the odd bytes. The last
// instruction computes acc OR (evenProducts AND NOT oddMask). Its constant is the truth table.
func (avx512) multiplyBytes(p *program, operand, acc string) {
	evenProducts, oddMask := zmm(10), zmm(12)
	p.emit("VPMULLW", operand, acc, evenProducts)
	p.emit("VPSRLW", "$8", acc, acc)
	p.emit("VPANDD", operand, oddMask, operand)
	p.emit("VPMULLW", operand, acc, acc)
	p.emit("VPTERNLOGD", "$0xF4", oddMask, evenProducts, acc)
}

// jumpIfNaN compares pairs of accumulators. A bit of K2 is set if its lane is ordered in all
// pairs.
func (avx512) jumpIfNaN(p *program, k kernel, units int, label string) {
	n := k.accumulatorCount(units)
	testInstruction := "KORTESTW" // 16 lanes of 32 bits
	if k.element.size == 8 {
		testInstruction = "KORTESTB" // 8 lanes of 64 bits
	}

	for i := 0; i < n; i += 2 {
		left, right := zmm(i), zmm(min(i+1, n-1)) // the last may have no partner
		if i == 0 {
			p.emit("VCMP"+k.element.laneSuffix, compareOrdered, left, right, "K2")
		} else { // the first K2 is a mask: the other bits of the second become 0
			p.emit("VCMP"+k.element.laneSuffix, compareOrdered, left, right, "K2", "K2")
		}
	}

	p.emit(testInstruction, "K2", "K2") // sets the carry flag if all bits are set
	p.emit("JCC", label)
}

func (avx512) replaceNaNs(p *program, k kernel, units int) {
	canonicalNaN, isNaN := zmm(8), "K2"
	p.emit("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.emit("VPBROADCAST"+broadcastLane(k), "R14", canonicalNaN)
	for i := range k.accumulatorCount(units) {
		acc := zmm(i)
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, acc, acc, isNaN)
		p.emit("VMOVA"+k.element.laneSuffix, canonicalNaN, isNaN, acc)
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
		oddMask, one, constant0x7FFF := zmm(12), zmm(13), zmm(14)
		addend := zmm(8)
		for _, i := range []int{low, high} {
			acc := zmm(i)
			p.emit("VPSRLD", "$16", acc, addend)
			p.emit("VPANDD", one, addend, addend)
			p.emit("VPADDD", constant0x7FFF, addend, addend)
			p.emit("VPADDD", addend, acc, acc)
		}

		p.emit("VPSRLD", "$16", zmm(low), zmm(low))
		p.emit("VPTERNLOGD", "$0xF8", oddMask, zmm(high), zmm(low)) // low OR (high AND oddMask)
	}
}

func (avx512) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := zmm(unit), fmt.Sprintf("VMOVDQU%d", 8*k.element.size)
	if k.element.is16Bit {
		register = zmm(2 * unit) // packAccumulators has filled it
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
