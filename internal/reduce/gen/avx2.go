package main

import "fmt"

// avx2 generates code for AVX2 and F16C. Its methods are documented by instructionSet. Go assembly
// has the reverse of Intel's order of operands: the destination is the last operand. VPCMPGTQ tests
// whether the second operand is greater than the first.
type avx2 struct{}

func (avx2) setName() string            { return "AVX2" }
func (avx2) vectorBytes() int           { return 32 }
func (avx2) hasMasks() bool             { return false }
func (avx2) cleanUpInstruction() string { return "VZEROUPPER" }
func (avx2) registerName(i int) string  { return ymm(i) }

// ymm returns the name of vector register i. Registers 0 to 7 are accumulators, and 8 to 11 are
// scratch. 12 to 14 hold the constants from loadConstants, and 15 the operand from loadOperand.
func ymm(i int) string { return fmt.Sprintf("Y%d", i) }

// xmm returns the name of the lower half of vector register i.
func xmm(i int) string { return fmt.Sprintf("X%d", i) }

// broadcastConstant sets all 32-bit lanes of vector register i to value.
func broadcastConstant(p *program, value uint32, i int) {
	p.emit("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.emit("VMOVD", "AX", xmm(i))
	p.emit("VPBROADCASTD", xmm(i), ymm(i))
}

func (avx2) loadConstants(p *program, k kernel) {
	switch {
	case k.element.name == "BFloat16":
		broadcastConstant(p, 0xFFFF0000, 12) // mask of the odd elements
		broadcastConstant(p, 1, 13)          // for rounding
		broadcastConstant(p, 0x7FFF, 14)     // for rounding
	case k.operation.name == "Prod" && k.element.size == 1:
		broadcastConstant(p, 0xFF00FF00, 12) // mask of the odd bytes
	case k.element.name == "Uint64" && k.operation.dependsOnSign:
		p.emit("MOVQ", "$0x8000000000000000", "AX") // for minOrMaxUint64
		p.emit("VMOVQ", "AX", xmm(12))
		p.emit("VPBROADCASTQ", xmm(12), ymm(12))
	}
}

func (avx2) loadOperand(p *program, k kernel, address string) {
	lane := broadcastLane(k)
	p.emit("VPBROADCAST"+lane, address, ymm(operandRegister))
}

// jumpIfNotFinite subtracts each accumulator from itself, which gives 0 in finite lanes and a NaN
// in others. It combines the differences with OR, which preserves NaNs.
func (avx2) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	all, next := ymm(8), ymm(9)
	for i := range k.accumulatorCount(units) {
		acc := ymm(i)
		if i == 0 {
			p.emit("VSUB"+k.element.laneSuffix, acc, acc, all)
			continue
		}

		p.emit("VSUB"+k.element.laneSuffix, acc, acc, next)
		p.emit("VPOR", next, all, all)
	}

	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, all, all, all)
	p.emit("VPTEST", all, all) // clears the zero flag if a bit is set
	p.emit("JNE", label)
}

// loadAsFloat32 converts a unit of 16-bit floats to float32 in two registers. The low register gets
// the first half of the Float16 elements. For BFloat16, it gets the even elements, which needs no
// shuffle.
func (avx2) loadAsFloat32(p *program, k kernel, address string, low, high int) {
	if k.element.name == "Float16" {
		const halfBytes = 16
		p.emit("VCVTPH2PS", address, ymm(low))
		p.emit("VCVTPH2PS", addBytes(address, halfBytes), ymm(high))
		return
	}

	oddMask := ymm(12)
	p.emit("VMOVDQU", address, ymm(high))
	p.emit("VPSLLD", "$16", ymm(high), ymm(low))
	p.emit("VPAND", oddMask, ymm(high), ymm(high))
}

func (s avx2) load(p *program, k kernel, unit int, address string, _ access) {
	if k.element.is16Bit {
		low, high := 2*unit, 2*unit+1
		s.loadAsFloat32(p, k, address, low, high)
		multiply(p, s, k, low, high)
		return
	}

	p.emit("VMOVDQU", address, ymm(unit))
	multiply(p, s, k, unit)
}

func (s avx2) combine(p *program, k kernel, unit int, address string, _ access) {
	const low, high = 8, 9                               // scratch registers
	isInt64 := k.element.size == 8 && !k.element.isFloat // signed or unsigned
	readsTwice := isInt64 && k.operation.name != "Sum"
	switch {
	case k.element.is16Bit:
		s.loadAsFloat32(p, k, address, low, high)
		multiply(p, s, k, low, high)
		s.combineLanes(p, k, ymm(low), 2*unit)
		s.combineLanes(p, k, ymm(high), 2*unit+1)
	case readsTwice || needsRegister(k):
		p.emit("VMOVDQU", address, ymm(low))
		multiply(p, s, k, low)
		s.combineLanes(p, k, ymm(low), unit)
	default:
		s.combineLanes(p, k, address, unit)
	}
}

// combineLanes emits code that combines an accumulator, as the left operand, with another operand
// in memory or in a register. If needsRegister is true, the code may change the operand.
func (s avx2) combineLanes(p *program, k kernel, operand string, accumulator int) {
	acc := ymm(accumulator)
	isMinOrMax := k.operation.name == "Min" || k.operation.name == "Max"
	switch {
	case k.element.isFloat && isMinOrMax:
		s.minOrMax(p, k, operand, acc)
	case k.operation.name == "Prod" && k.element.size == 1:
		s.multiplyBytes(p, operand, acc)
	case k.element.laneSuffix == "Q" && k.operation.name == "Prod":
		s.multiply64(p, operand, acc)
	case k.element.name == "Int64" && k.operation.name == "Min":
		accIsGreater := ymm(10)
		p.emit("VPCMPGTQ", operand, acc, accIsGreater)
		p.emit("VBLENDVPD", accIsGreater, operand, acc, acc)
	case k.element.name == "Int64" && k.operation.name == "Max":
		operandIsGreater := ymm(10)
		p.emit("VPCMPGTQ", acc, operand, operandIsGreater)
		p.emit("VBLENDVPD", operandIsGreater, operand, acc, acc)
	case k.element.name == "Uint64" && isMinOrMax:
		s.minOrMaxUint64(p, k, operand, acc)
	default:
		p.emit(k.instruction(""), operand, acc, acc)
	}
}

// multiplyBytes multiplies integers of 8 bits, for which there is no instruction. It multiplies
// lanes of 16 bits: once for the even bytes, and once, after a shift, for the odd bytes. It then
// takes a byte of acc where the mask is set, and a byte of evenProducts elsewhere.
func (avx2) multiplyBytes(p *program, operand, acc string) {
	evenProducts, oddMask := ymm(10), ymm(12)
	p.emit("VPMULLW", operand, acc, evenProducts)
	p.emit("VPSRLW", "$8", acc, acc)
	p.emit("VPAND", operand, oddMask, operand)
	p.emit("VPMULLW", operand, acc, acc)
	p.emit("VPBLENDVB", oddMask, acc, evenProducts, acc)
}

// minOrMaxUint64 computes the minimum or maximum of unsigned integers. It inverts their highest
// bits for the comparison, because VPCMPGTQ treats integers as signed.
func (avx2) minOrMaxUint64(p *program, k kernel, operand, acc string) {
	highestBits, takeOperand := ymm(12), ymm(10)
	signedOperand, signedAcc := ymm(10), ymm(11)
	p.emit("VPXOR", operand, highestBits, signedOperand)
	p.emit("VPXOR", acc, highestBits, signedAcc)
	if k.operation.name == "Min" {
		p.emit("VPCMPGTQ", signedOperand, signedAcc, takeOperand) // acc > operand
	} else {
		p.emit("VPCMPGTQ", signedAcc, signedOperand, takeOperand) // operand > acc
	}

	p.emit("VBLENDVPD", takeOperand, operand, acc, acc)
}

// minOrMax computes the minimum or maximum of floats with both orders of the operands. The two
// results differ only for -0 and +0. For a minimum, OR turns them into -0. For a maximum, AND
// turns them into +0. If a lane has a NaN, its operands are added, so that the result is a NaN.
func (avx2) minOrMax(p *program, k kernel, operand, acc string) {
	instruction, mergeInstruction := "VMIN", "VORPS"
	if k.operation.name == "Max" {
		instruction, mergeInstruction = "VMAX", "VANDPS"
	}

	instruction += k.element.laneSuffix
	result, otherResult, hasNaN := ymm(10), ymm(11), ymm(11)
	p.emit(instruction, operand, acc, result)
	p.emit(instruction, acc, operand, otherResult)
	p.emit(mergeInstruction, otherResult, result, result)
	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, operand, acc, hasNaN)
	p.emit("VADD"+k.element.laneSuffix, operand, acc, acc)
	p.emit("VBLENDV"+k.element.laneSuffix, hasNaN, acc, result, acc)
}

// multiply64 multiplies 64-bit integers, for which there is no instruction. It multiplies their
// halves of 32 bits: the result is low*low + (high*low + low*high)<<32. The product of the high
// halves would be shifted out.
func (avx2) multiply64(p *program, operand, acc string) {
	middle, otherMiddle := ymm(10), ymm(11)
	p.emit("VPSRLQ", "$32", acc, middle)
	p.emit("VPMULUDQ", operand, middle, middle)
	p.emit("VPSRLQ", "$32", operand, otherMiddle)
	p.emit("VPMULUDQ", acc, otherMiddle, otherMiddle)
	p.emit("VPADDQ", otherMiddle, middle, middle)
	p.emit("VPSLLQ", "$32", middle, middle)
	p.emit("VPMULUDQ", operand, acc, acc)
	p.emit("VPADDQ", middle, acc, acc)
}

// jumpIfNaN compares pairs of accumulators. A lane is unordered if it is a NaN in either of them.
func (avx2) jumpIfNaN(p *program, k kernel, units int, label string) {
	all, next := ymm(8), ymm(9)
	n := k.accumulatorCount(units)
	for i := 0; i < n; i += 2 {
		left, right := ymm(i), ymm(min(i+1, n-1)) // the last may have no partner
		if i == 0 {
			p.emit("VCMP"+k.element.laneSuffix, compareUnordered, left, right, all)
			continue
		}

		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, left, right, next)
		p.emit("VPOR", next, all, all)
	}

	p.emit("VPTEST", all, all) // clears the zero flag if a bit is set
	p.emit("JNE", label)
}

func (avx2) replaceNaNs(p *program, k kernel, units int) {
	canonicalNaN, isNaN := ymm(8), ymm(9)
	lane := broadcastLane(k)
	p.emit("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.emit("VMOVQ", "R14", xmm(8))
	p.emit("VPBROADCAST"+lane, xmm(8), canonicalNaN)
	for i := range k.accumulatorCount(units) {
		acc := ymm(i)
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, acc, acc, isNaN)
		p.emit("VBLENDV"+k.element.laneSuffix, isNaN, canonicalNaN, acc, acc)
	}
}

func (avx2) packAccumulators(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.element.name {
	case "Float16":
		const nearestEven = "$0"
		p.emit("VCVTPS2PH", nearestEven, ymm(low), xmm(low))
		p.emit("VCVTPS2PH", nearestEven, ymm(high), xmm(high))
		p.emit("VINSERTI128", "$1", xmm(high), ymm(low), ymm(low))
	case "BFloat16":
		// Adding 0x7FFF plus the lowest bit that is kept rounds to nearest even.
		oddMask, one, constant0x7FFF := ymm(12), ymm(13), ymm(14)
		addend := ymm(8)
		for _, i := range []int{low, high} {
			acc := ymm(i)
			p.emit("VPSRLD", "$16", acc, addend)
			p.emit("VPAND", one, addend, addend)
			p.emit("VPADDD", constant0x7FFF, addend, addend)
			p.emit("VPADDD", addend, acc, acc)
		}

		p.emit("VPSRLD", "$16", ymm(low), ymm(low))
		p.emit("VPAND", oddMask, ymm(high), ymm(high))
		p.emit("VPOR", ymm(high), ymm(low), ymm(low))
	}
}

func (avx2) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := ymm(unit), "VMOVDQU"
	if k.element.is16Bit {
		register = ymm(2 * unit) // packAccumulators has filled it
	}

	if mode == accessStreamed {
		move = "VMOVNTDQ"
	}

	p.emit(move, register, address)
}
