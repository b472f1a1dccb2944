package main

import "fmt"

// avx2 generates code for AVX2 and F16C.
type avx2 struct{}

func (avx2) name() string          { return "AVX2" }
func (avx2) bytes() int            { return 32 }
func (avx2) masks() bool           { return false }
func (avx2) cleanUp() string       { return "VZEROUPPER" }
func (avx2) register(i int) string { return v(i) }

// v returns the name of vector register i, as numbered in the comment in main.go. x returns the
// name of its lower half.
func v(i int) string { return fmt.Sprintf("Y%d", i) }
func x(i int) string { return fmt.Sprintf("X%d", i) }

func constant(p *program, value uint32, i int) {
	p.op("MOVL", fmt.Sprintf("$%#x", value), "AX")
	p.op("VMOVD", "AX", x(i))
	p.op("VPBROADCASTD", x(i), v(i))
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
		p.op("VMOVQ", "AX", x(12))
		p.op("VPBROADCASTQ", x(12), v(12))
	}
}

func (avx2) operand(p *program, k kernel, address string) {
	suffix := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("VPBROADCAST"+suffix, address, v(15))
}

// jumpIfNotFinite subtracts each accumulator from itself; see avx512.jumpIfNotFinite.
func (avx2) jumpIfNotFinite(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	for i := range k.registers(units) {
		if i == 0 {
			p.op("VSUB"+k.elem.lane, v(i), v(i), v(8))
			continue
		}
		p.op("VSUB"+k.elem.lane, v(i), v(i), v(9))
		p.op("VPOR", v(9), v(8), v(8))
	}
	p.op("VCMP"+k.elem.lane, unordered, v(8), v(8), v(8))
	p.op("VPTEST", v(8), v(8))
	p.op("JNE", label)
}

// widen loads a vector of 16-bit floats; see avx512.widen.
func (avx2) widen(p *program, k kernel, address string, low, high int) {
	if k.elem.name == "Float16" {
		p.op("VCVTPH2PS", address, v(low))
		p.op("VCVTPH2PS", addBytes(address, 16), v(high))
		return
	}
	p.op("VMOVDQU", address, v(high))
	p.op("VPSLLD", "$16", v(high), v(low))
	p.op("VPAND", v(12), v(high), v(high))
}

func (s avx2) load(p *program, k kernel, unit int, address string, _ access) {
	if k.elem.half {
		s.widen(p, k, address, 2*unit, 2*unit+1)
		multiply(p, s, k, 2*unit, 2*unit+1)
		return
	}
	p.op("VMOVDQU", address, v(unit))
	multiply(p, s, k, unit)
}

func (s avx2) combine(p *program, k kernel, unit int, address string, _ access) {
	switch {
	case k.elem.half:
		s.widen(p, k, address, 8, 9)
		multiply(p, s, k, 8, 9)
		s.lanes(p, k, v(8), 2*unit)
		s.lanes(p, k, v(9), 2*unit+1)
	case needsRegister(k) || k.elem.size == 8 && !k.elem.float && k.op.name != "Sum":
		p.op("VMOVDQU", address, v(8))
		multiply(p, s, k, 8)
		s.lanes(p, k, v(8), unit)
	default:
		s.lanes(p, k, address, unit)
	}
}

// lanes combines an operand with an accumulator, which is the left operand.
func (s avx2) lanes(p *program, k kernel, operand string, acc int) {
	switch {
	case k.elem.float && (k.op.name == "Min" || k.op.name == "Max"):
		s.extremes(p, k, operand, v(acc))
	case k.op.name == "Prod" && k.elem.size == 1:
		// This is like avx512.lanes, but the highest bit of each byte in the mask selects the
		// blend.
		p.op("VPMULLW", operand, v(acc), v(10))
		p.op("VPSRLW", "$8", v(acc), v(acc))
		p.op("VPAND", operand, v(12), operand)
		p.op("VPMULLW", operand, v(acc), v(acc))
		p.op("VPBLENDVB", v(12), v(acc), v(10), v(acc))
	case k.elem.lane == "Q" && k.op.name == "Prod":
		s.longProduct(p, operand, v(acc))
	case k.elem.name == "Int64" && k.op.name == "Min":
		p.op("VPCMPGTQ", operand, v(acc), v(10))
		p.op("VBLENDVPD", v(10), operand, v(acc), v(acc))
	case k.elem.name == "Int64" && k.op.name == "Max":
		p.op("VPCMPGTQ", v(acc), operand, v(10))
		p.op("VBLENDVPD", v(10), operand, v(acc), v(acc))
	case k.elem.name == "Uint64" && (k.op.name == "Min" || k.op.name == "Max"):
		s.longExtreme(p, k, operand, v(acc))
	default:
		p.op(k.instruction(""), operand, v(acc), v(acc))
	}
}

// longExtreme inverts the highest bits, which lets it compare unsigned integers as if they were
// signed.
func (avx2) longExtreme(p *program, k kernel, operand, acc string) {
	p.op("VPXOR", operand, v(12), v(10))
	p.op("VPXOR", acc, v(12), v(11))
	if k.op.name == "Min" {
		p.op("VPCMPGTQ", v(10), v(11), v(10))
	} else {
		p.op("VPCMPGTQ", v(11), v(10), v(10))
	}
	p.op("VBLENDVPD", v(10), operand, acc, acc)
}

// extremes computes the result with both orders of the operands. The two results differ only for
// zeros, where OR gives -0 and AND gives +0. If a lane has a NaN, its operands are added
// instead, because addition propagates NaNs.
func (avx2) extremes(p *program, k kernel, operand, acc string) {
	instruction := map[string]string{"Min": "VMIN", "Max": "VMAX"}[k.op.name] + k.elem.lane
	merge := map[string]string{"Min": "VORPS", "Max": "VANDPS"}[k.op.name]
	p.op(instruction, operand, acc, v(10))
	p.op(instruction, acc, operand, v(11))
	p.op(merge, v(11), v(10), v(10))
	p.op("VCMP"+k.elem.lane, "$3", operand, acc, v(11))
	p.op("VADD"+k.elem.lane, operand, acc, acc)
	p.op("VBLENDV"+k.elem.lane, v(11), acc, v(10), acc)
}

// longProduct computes 64-bit products from 32-bit halves: low*low + (low*high + high*low)<<32.
func (avx2) longProduct(p *program, operand, acc string) {
	p.op("VPSRLQ", "$32", acc, v(10))
	p.op("VPMULUDQ", operand, v(10), v(10))
	p.op("VPSRLQ", "$32", operand, v(11))
	p.op("VPMULUDQ", acc, v(11), v(11))
	p.op("VPADDQ", v(11), v(10), v(10))
	p.op("VPSLLQ", "$32", v(10), v(10))
	p.op("VPMULUDQ", operand, acc, acc)
	p.op("VPADDQ", v(10), acc, acc)
}

// jumpIfNaN compares accumulators in pairs; see avx512.jumpIfNaN.
func (avx2) jumpIfNaN(p *program, k kernel, units int, label string) {
	const unordered = "$3"
	n := k.registers(units)
	for i := 0; i < n; i += 2 {
		left, right := v(i), v(min(i+1, n-1))
		if i == 0 {
			p.op("VCMP"+k.elem.lane, unordered, left, right, v(8))
			continue
		}
		p.op("VCMP"+k.elem.lane, unordered, left, right, v(9))
		p.op("VPOR", v(9), v(8), v(8))
	}
	p.op("VPTEST", v(8), v(8))
	p.op("JNE", label)
}

func (avx2) canonical(p *program, k kernel, units int) {
	const unordered = "$3"
	lane := map[bool]string{true: "Q", false: "D"}[k.elem.size == 8]
	p.op("MOVQ", fmt.Sprintf("$%#x", k.canonicalNaN()), "R14")
	p.op("VMOVQ", "R14", x(8))
	p.op("VPBROADCAST"+lane, x(8), v(8))
	for i := range k.registers(units) {
		p.op("VCMP"+k.elem.lane, unordered, v(i), v(i), v(9))
		p.op("VBLENDV"+k.elem.lane, v(9), v(8), v(i), v(i))
	}
}

func (avx2) pack(p *program, k kernel, unit int) {
	low, high := 2*unit, 2*unit+1
	switch k.elem.name {
	case "Float16":
		p.op("VCVTPS2PH", "$0", v(low), x(low))
		p.op("VCVTPS2PH", "$0", v(high), x(high))
		p.op("VINSERTI128", "$1", x(high), v(low), v(low))
	case "BFloat16":
		// This is like avx512.pack.
		for _, acc := range []int{low, high} {
			p.op("VPSRLD", "$16", v(acc), v(8))
			p.op("VPAND", v(13), v(8), v(8))
			p.op("VPADDD", v(14), v(8), v(8))
			p.op("VPADDD", v(8), v(acc), v(acc))
		}
		p.op("VPSRLD", "$16", v(low), v(low))
		p.op("VPAND", v(12), v(high), v(high))
		p.op("VPOR", v(high), v(low), v(low))
	}
}

func (avx2) store(p *program, k kernel, unit int, address string, how access) {
	register, move := v(unit), "VMOVDQU"
	if k.elem.half {
		register = v(2 * unit)
	}
	if how == streamed {
		move = "VMOVNTDQ"
	}
	p.op(move, register, address)
}
