package main

import "fmt"

// avx2 generates code for AVX2 and F16C.
type avx2 struct{}

func (avx2) name() string          { return "AVX2" }
func (avx2) bytes() int            { return 32 }
func (avx2) hasMasks() bool        { return false }
func (avx2) cleanUp() string       { return "VZEROUPPER" }
func (avx2) register(i int) string { return ymm(i) }

// ymm returns the name of vector register i, as numbered in main.go. xmm returns the name of its
// lower half.
func ymm(i int) string { return fmt.Sprintf("Y%d", i) }
func xmm(i int) string { return fmt.Sprintf("X%d", i) }

func constant(p *program, value uint32, i int) {
	p.op("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.op("VMOVD", "AX", xmm(i))
	p.op("VPBROADCASTD", xmm(i), ymm(i))
}

func (avx2) constants(p *program, k kernel) {
	switch {
	case k.elem.name == "BFloat16":
		constant(p, 0xFFFF0000, 12)
		constant(p, 1, 13)
		constant(p, 0x7FFF, 14)
	case k.op.name == "Prod" && k.elem.size == 1:
		constant(p, 0xFF00FF00, 12)
	case k.elem.name == "Uint64" && k.op.signed:
		p.op("MOVQ", "$0x8000000000000000", "AX")
		p.op("VMOVQ", "AX", xmm(12))
		p.op("VPBROADCASTQ", xmm(12), ymm(12))
	}
}

func (avx2) operand(p *program, k kernel, address string) {
	suffix := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("VPBROADCAST"+suffix, address, ymm(15))
}

// jumpIfNotFinite is like avx512.jumpIfNotFinite.
func (avx2) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	for i := range k.registers(units) {
		if i == 0 {
			p.op("VSUB"+k.elem.lane, ymm(i), ymm(i), ymm(8))
			continue
		}
		p.op("VSUB"+k.elem.lane, ymm(i), ymm(i), ymm(9))
		p.op("VPOR", ymm(9), ymm(8), ymm(8))
	}
	p.op("VCMP"+k.elem.lane, unordered, ymm(8), ymm(8), ymm(8))
	p.op("VPTEST", ymm(8), ymm(8))
	p.op("JNE", label)
}

// widen is like avx512.widen.
func (avx2) widen(p *program, k kernel, address string, low, high int) {
	if k.elem.name == "Float16" {
		p.op("VCVTPH2PS", address, ymm(low))
		p.op("VCVTPH2PS", addBytes(address, 16), ymm(high))
		return
	}
	p.op("VMOVDQU", address, ymm(high))
	p.op("VPSLLD", "$16", ymm(high), ymm(low))
	p.op("VPAND", ymm(12), ymm(high), ymm(high))
}

func (s avx2) load(p *program, k kernel, unit int, address string, _ access) {
	if k.elem.half {
		s.widen(p, k, address, 2*unit, 2*unit+1)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	p.op("VMOVDQU", address, ymm(unit))
	multiply(p, s, k, unit)
}

func (s avx2) combine(p *program, k kernel, unit int, address string, _ access) {
	switch {
	case k.elem.half:
		s.widen(p, k, address, 8, 9)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, ymm(8), 2*unit)
		s.lanes(p, k, ymm(9), 2*unit+1)
	case needsRegister(k) || k.elem.size == 8 && !k.elem.float && k.op.name != "Sum":
		p.op("VMOVDQU", address, ymm(8))
		multiply(p, s, k, 8)
		s.lanes(p, k, ymm(8), unit)
	default:
		s.lanes(p, k, address, unit)
	}
}

// lanes combines an operand with an accumulator, which is the left operand.
func (s avx2) lanes(p *program, k kernel, operand string, acc int) {
	switch {
	case k.elem.float && (k.op.name == "Min" || k.op.name == "Max"):
		s.extremes(p, k, operand, ymm(acc))
	case k.op.name == "Prod" && k.elem.size == 1:
		// This is like avx512.lanes, but the highest bit of each byte selects the blend.
		p.op("VPMULLW", operand, ymm(acc), ymm(10))
		p.op("VPSRLW", "$8", ymm(acc), ymm(acc))
		p.op("VPAND", operand, ymm(12), operand)
		p.op("VPMULLW", operand, ymm(acc), ymm(acc))
		p.op("VPBLENDVB", ymm(12), ymm(acc), ymm(10), ymm(acc))
	case k.elem.lane == "Q" && k.op.name == "Prod":
		s.longProduct(p, operand, ymm(acc))
	case k.elem.name == "Int64" && k.op.name == "Min":
		p.op("VPCMPGTQ", operand, ymm(acc), ymm(10))
		p.op("VBLENDVPD", ymm(10), operand, ymm(acc), ymm(acc))
	case k.elem.name == "Int64" && k.op.name == "Max":
		p.op("VPCMPGTQ", ymm(acc), operand, ymm(10))
		p.op("VBLENDVPD", ymm(10), operand, ymm(acc), ymm(acc))
	case k.elem.name == "Uint64" && (k.op.name == "Min" || k.op.name == "Max"):
		s.longExtreme(p, k, operand, ymm(acc))
	default:
		p.op(k.instruction(""), operand, ymm(acc), ymm(acc))
	}
}

// longExtreme inverts the highest bits to compare unsigned integers as if they were signed.
func (avx2) longExtreme(p *program, k kernel, operand, acc string) {
	p.op("VPXOR", operand, ymm(12), ymm(10))
	p.op("VPXOR", acc, ymm(12), ymm(11))
	if k.op.name == "Min" {
		p.op("VPCMPGTQ", ymm(10), ymm(11), ymm(10))
	} else {
		p.op("VPCMPGTQ", ymm(11), ymm(10), ymm(10))
	}
	p.op("VBLENDVPD", ymm(10), operand, acc, acc)
}

// extremes computes the result with both orders of the operands, which differ only for zeros: OR
// gives -0 and AND gives +0. If a lane has a NaN, its operands are added, which propagates NaNs.
func (avx2) extremes(p *program, k kernel, operand, acc string) {
	instruction := map[string]string{"Min": "VMIN", "Max": "VMAX"}[k.op.name] + k.elem.lane
	merge := map[string]string{"Min": "VORPS", "Max": "VANDPS"}[k.op.name]
	p.op(instruction, operand, acc, ymm(10))
	p.op(instruction, acc, operand, ymm(11))
	p.op(merge, ymm(11), ymm(10), ymm(10))
	p.op("VCMP"+k.elem.lane, "$3", operand, acc, ymm(11))
	p.op("VADD"+k.elem.lane, operand, acc, acc)
	p.op("VBLENDV"+k.elem.lane, ymm(11), acc, ymm(10), acc)
}

// longProduct computes 64-bit products from halves: low*low + (low*high + high*low)<<32.
func (avx2) longProduct(p *program, operand, acc string) {
	p.op("VPSRLQ", "$32", acc, ymm(10))
	p.op("VPMULUDQ", operand, ymm(10), ymm(10))
	p.op("VPSRLQ", "$32", operand, ymm(11))
	p.op("VPMULUDQ", acc, ymm(11), ymm(11))
	p.op("VPADDQ", ymm(11), ymm(10), ymm(10))
	p.op("VPSLLQ", "$32", ymm(10), ymm(10))
	p.op("VPMULUDQ", operand, acc, acc)
	p.op("VPADDQ", ymm(10), acc, acc)
}

// jumpIfNaN is like avx512.jumpIfNaN.
func (avx2) jumpIfNaN(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	n := k.registers(units)
	for i := 0; i < n; i += 2 {
		left, right := ymm(i), ymm(min(i+1, n-1))
		if i == 0 {
			p.op("VCMP"+k.elem.lane, unordered, left, right, ymm(8))
			continue
		}
		p.op("VCMP"+k.elem.lane, unordered, left, right, ymm(9))
		p.op("VPOR", ymm(9), ymm(8), ymm(8))
	}
	p.op("VPTEST", ymm(8), ymm(8))
	p.op("JNE", label)
}

func (avx2) replaceNaNs(p *program, k kernel, units int) {
	const unordered = "$3"
	lane := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.op("VMOVQ", "R14", xmm(8))
	p.op("VPBROADCAST"+lane, xmm(8), ymm(8))
	for i := range k.registers(units) {
		p.op("VCMP"+k.elem.lane, unordered, ymm(i), ymm(i), ymm(9))
		p.op("VBLENDV"+k.elem.lane, ymm(9), ymm(8), ymm(i), ymm(i))
	}
}

func (avx2) pack(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.elem.name {
	case "Float16":
		p.op("VCVTPS2PH", "$0", ymm(low), xmm(low))
		p.op("VCVTPS2PH", "$0", ymm(high), xmm(high))
		p.op("VINSERTI128", "$1", xmm(high), ymm(low), ymm(low))
	case "BFloat16":
		// This is like avx512.pack.
		for _, acc := range []int{low, high} {
			p.op("VPSRLD", "$16", ymm(acc), ymm(8))
			p.op("VPAND", ymm(13), ymm(8), ymm(8))
			p.op("VPADDD", ymm(14), ymm(8), ymm(8))
			p.op("VPADDD", ymm(8), ymm(acc), ymm(acc))
		}
		p.op("VPSRLD", "$16", ymm(low), ymm(low))
		p.op("VPAND", ymm(12), ymm(high), ymm(high))
		p.op("VPOR", ymm(high), ymm(low), ymm(low))
	}
}

func (avx2) store(p *program, k kernel, unit int, address string, mode access) {
	register, move := ymm(unit), "VMOVDQU"
	if k.elem.half {
		register = ymm(2 * unit)
	}
	if mode == accessStreamed {
		move = "VMOVNTDQ"
	}
	p.op(move, register, address)
}
