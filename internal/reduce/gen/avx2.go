package main

import "fmt"

// avx2 generates code for AVX2 and F16C.
type avx2 struct{}

func (avx2) setName() string            { return "AVX2" }
func (avx2) vectorBytes() int           { return 32 }
func (avx2) hasMasks() bool             { return false }
func (avx2) cleanUpInstruction() string { return "VZEROUPPER" }
func (avx2) registerName(i int) string  { return ymm(i) }

// ymm returns the name of vector register i. The package comment in main.go lists the registers.
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
	suffix := map[bool]string{true: "Q", false: "D"}[k.element.size == 8]
	p.emit("VPBROADCAST"+suffix, address, ymm(15))
}

// jumpIfNotFinite uses differences, like avx512.jumpIfNotFinite.
func (avx2) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	for i := range k.registers(units) {
		if i == 0 {
			p.emit("VSUB"+k.element.laneSuffix, ymm(i), ymm(i), ymm(8))
			continue
		}
		p.emit("VSUB"+k.element.laneSuffix, ymm(i), ymm(i), ymm(9))
		p.emit("VPOR", ymm(9), ymm(8), ymm(8))
	}
	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, ymm(8), ymm(8), ymm(8))
	p.emit("VPTEST", ymm(8), ymm(8)) // clears the zero flag if a bit is set
	p.emit("JNE", label)
}

// loadAsFloat32 converts a unit of 16-bit floats to float32 in two registers, in the same order as
// avx512.loadAsFloat32.
func (avx2) loadAsFloat32(p *program, k kernel, address string, low, high int) {
	if k.element.name == "Float16" {
		p.emit("VCVTPH2PS", address, ymm(low))
		p.emit("VCVTPH2PS", addBytes(address, 16), ymm(high))
		return
	}
	p.emit("VMOVDQU", address, ymm(high))
	p.emit("VPSLLD", "$16", ymm(high), ymm(low))
	p.emit("VPAND", ymm(12), ymm(high), ymm(high))
}

func (s avx2) load(p *program, k kernel, unit int, address string, _ access) {
	if k.element.is16Bit {
		s.loadAsFloat32(p, k, address, 2*unit, 2*unit+1)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	p.emit("VMOVDQU", address, ymm(unit))
	multiply(p, s, k, unit)
}

func (s avx2) combine(p *program, k kernel, unit int, address string, _ access) {
	isInt64 := k.element.size == 8 && !k.element.isFloat // signed or unsigned
	switch {
	case k.element.is16Bit:
		s.loadAsFloat32(p, k, address, 8, 9)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, ymm(8), 2*unit)
		s.lanes(p, k, ymm(9), 2*unit+1)
	case needsRegister(k) || isInt64 && k.operation.name != "Sum":
		p.emit("VMOVDQU", address, ymm(8))
		multiply(p, s, k, 8)
		s.lanes(p, k, ymm(8), unit)
	default:
		s.lanes(p, k, address, unit)
	}
}

// lanes emits code that combines accumulator acc, as the left operand, with another operand.
func (s avx2) lanes(p *program, k kernel, operand string, acc int) {
	switch {
	case k.element.isFloat && (k.operation.name == "Min" || k.operation.name == "Max"):
		s.minOrMax(p, k, operand, ymm(acc))
	case k.operation.name == "Prod" && k.element.size == 1:
		// The code is like avx512.lanes, but VPBLENDVB takes a byte of acc where the highest
		// bit of the mask's byte is set.
		p.emit("VPMULLW", operand, ymm(acc), ymm(10))
		p.emit("VPSRLW", "$8", ymm(acc), ymm(acc))
		p.emit("VPAND", operand, ymm(12), operand)
		p.emit("VPMULLW", operand, ymm(acc), ymm(acc))
		p.emit("VPBLENDVB", ymm(12), ymm(acc), ymm(10), ymm(acc))
	case k.element.laneSuffix == "Q" && k.operation.name == "Prod":
		s.multiply64(p, operand, ymm(acc))
	case k.element.name == "Int64" && k.operation.name == "Min":
		p.emit("VPCMPGTQ", operand, ymm(acc), ymm(10))
		p.emit("VBLENDVPD", ymm(10), operand, ymm(acc), ymm(acc))
	case k.element.name == "Int64" && k.operation.name == "Max":
		p.emit("VPCMPGTQ", ymm(acc), operand, ymm(10))
		p.emit("VBLENDVPD", ymm(10), operand, ymm(acc), ymm(acc))
	case k.element.name == "Uint64" && (k.operation.name == "Min" || k.operation.name == "Max"):
		s.minOrMaxUint64(p, k, operand, ymm(acc))
	default:
		p.emit(k.instruction(""), operand, ymm(acc), ymm(acc))
	}
}

// minOrMaxUint64 computes the minimum or maximum of unsigned integers. It inverts their highest
// bits for the comparison, because VPCMPGTQ treats integers as signed.
func (avx2) minOrMaxUint64(p *program, k kernel, operand, acc string) {
	p.emit("VPXOR", operand, ymm(12), ymm(10))
	p.emit("VPXOR", acc, ymm(12), ymm(11))
	if k.operation.name == "Min" {
		p.emit("VPCMPGTQ", ymm(10), ymm(11), ymm(10))
	} else {
		p.emit("VPCMPGTQ", ymm(11), ymm(10), ymm(10))
	}
	p.emit("VBLENDVPD", ymm(10), operand, acc, acc)
}

// minOrMax computes the minimum or maximum of floats with both orders of the operands. The two
// results differ only for -0 and +0. For a minimum, OR turns them into -0. For a maximum, AND
// turns them into +0. If a lane has a NaN, its operands are added, so that the result is a NaN.
func (avx2) minOrMax(p *program, k kernel, operand, acc string) {
	instruction := map[string]string{
		"Min": "VMIN",
		"Max": "VMAX",
	}[k.operation.name] + k.element.laneSuffix
	mergeInstruction := map[string]string{"Min": "VORPS", "Max": "VANDPS"}[k.operation.name]
	p.emit(instruction, operand, acc, ymm(10))
	p.emit(instruction, acc, operand, ymm(11))
	p.emit(mergeInstruction, ymm(11), ymm(10), ymm(10))
	p.emit("VCMP"+k.element.laneSuffix, compareUnordered, operand, acc, ymm(11))
	p.emit("VADD"+k.element.laneSuffix, operand, acc, acc)
	p.emit("VBLENDV"+k.element.laneSuffix, ymm(11), acc, ymm(10), acc)
}

// multiply64 multiplies 64-bit integers. It adds the product of the low halves to the products of
// each high half with the other low half, shifted by 32 bits.
func (avx2) multiply64(p *program, operand, acc string) {
	p.emit("VPSRLQ", "$32", acc, ymm(10))
	p.emit("VPMULUDQ", operand, ymm(10), ymm(10))
	p.emit("VPSRLQ", "$32", operand, ymm(11))
	p.emit("VPMULUDQ", acc, ymm(11), ymm(11))
	p.emit("VPADDQ", ymm(11), ymm(10), ymm(10))
	p.emit("VPSLLQ", "$32", ymm(10), ymm(10))
	p.emit("VPMULUDQ", operand, acc, acc)
	p.emit("VPADDQ", ymm(10), acc, acc)
}

func (avx2) jumpIfNaN(p *program, k kernel, units int, label string) {
	n := k.registers(units)
	for i := 0; i < n; i += 2 {
		left, right := ymm(i), ymm(min(i+1, n-1))
		if i == 0 {
			p.emit("VCMP"+k.element.laneSuffix, compareUnordered, left, right, ymm(8))
			continue
		}
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, left, right, ymm(9))
		p.emit("VPOR", ymm(9), ymm(8), ymm(8))
	}
	p.emit("VPTEST", ymm(8), ymm(8))
	p.emit("JNE", label)
}

func (avx2) replaceNaNs(p *program, k kernel, units int) {
	lane := map[bool]string{true: "Q", false: "D"}[k.element.size == 8]
	p.emit("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.emit("VMOVQ", "R14", xmm(8))
	p.emit("VPBROADCAST"+lane, xmm(8), ymm(8))
	for i := range k.registers(units) {
		p.emit("VCMP"+k.element.laneSuffix, compareUnordered, ymm(i), ymm(i), ymm(9))
		p.emit("VBLENDV"+k.element.laneSuffix, ymm(9), ymm(8), ymm(i), ymm(i))
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
		// The code is like avx512.packAccumulators.
		for _, acc := range []int{low, high} {
			p.emit("VPSRLD", "$16", ymm(acc), ymm(8))
			p.emit("VPAND", ymm(13), ymm(8), ymm(8))
			p.emit("VPADDD", ymm(14), ymm(8), ymm(8))
			p.emit("VPADDD", ymm(8), ymm(acc), ymm(acc))
		}
		p.emit("VPSRLD", "$16", ymm(low), ymm(low))
		p.emit("VPAND", ymm(12), ymm(high), ymm(high))
		p.emit("VPOR", ymm(high), ymm(low), ymm(low))
	}
}

func (avx2) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := ymm(unit), "VMOVDQU"
	if k.element.is16Bit {
		register = ymm(2 * unit)
	}
	if mode == accessStreamed {
		move = "VMOVNTDQ"
	}
	p.emit(move, register, address)
}
