package kernels

import (
	"symmem/driver"
	"symmem/internal/cuda"
)

const (
	// rowThreads is the largest number of threads that normalize a row, as in src/norm.h.
	rowThreads = 512
	packBytes  = 16
)

// chooseNorm chooses either one kernel for the whole norm, or a kernel for its all-reduce, which
// the step from localStep follows.
func chooseNorm(l *Launch) error {
	norm, sum := l.Call, *l.Call
	sum.Operation, l.Call = driver.AllReduce, &sum
	err := l.Choose()
	l.Call = norm
	switch {
	case err != nil:
		return err
	case l.Bulk:
		return nil
	case !l.generic && !prefersAllReduce(l) && chooseRows(l):
		return nil
	case l.Pieces > 1:
		return l.errDoesNotFit(l.partBytes)
	}
	return nil
}

// prefersAllReduce reports whether a separate all-reduce is faster: it spreads a few long rows over
// many blocks.
func prefersAllReduce(l *Launch) bool {
	row := 2 * l.Norm.Hidden
	return l.Norm.Rows < fewRows &&
		(chunks(row, wideLines) > maxRowWarps || row*int64(l.Ranks-1) > longRow)
}

// A row is long if a block would send more than longRow bytes of it, or if its chunks need more
// than maxRowWarps warps.
const (
	fewRows = 16
	longRow = 32 << 10
)

// chooseRows chooses a norm kernel, and reports whether the rows fit into exchange memory.
func chooseRows(l *Launch) bool {
	n := l.Norm
	row := 2 * n.Hidden
	part, shots := row, int64(1)
	if l.Ranks > 2 && l.partBytes > maxNormOneShotBytes/int64(l.Ranks-1) {
		packs := (n.Hidden/driver.NormUnit + int64(l.Ranks) - 1) / int64(l.Ranks)
		part, shots = packs*packBytes, 2
	}
	all := chunks(part, wideLines)
	if n.Rows*all*wideLines*lineBytes*int64(l.Ranks)*shots > halfBytes {
		return false
	}
	name := "norm"
	if shots == 2 {
		name, all = "norm_two_shot", all*int64(l.Ranks)
	}
	l.Kernel, l.Fused, l.Pieces = l.kernelName(withQuant(name, n)), true, 1
	l.sendStride = 0
	// An additional warp exchanges headers.
	l.Threads = warp * (1 + max(int(min(all, maxRowWarps)), normWarps(n)))
	l.Blocks = int(max(1, min(n.Rows, int64(rowBlocks(l)))))
	return true
}

const (
	maxNormOneShotBytes = maxOneShotBytes
	// maxRowWarps limits the warps of a block that move data.
	maxRowWarps = 31
)

func normWarps(n *driver.Norm) int {
	return int(min((n.Hidden/driver.NormUnit+warp-1)/warp, rowThreads/warp))
}

// rowBlocks leaves space for a small call of another group.
func rowBlocks(l *Launch) int {
	return min(maxBlocks, l.Multiprocessors-l.Multiprocessors/spareMultiprocessors)
}

// spareMultiprocessors is a divisor: 1/32 of the multiprocessors stay free.
const spareMultiprocessors = 32

func withQuant(family string, n *driver.Norm) string {
	if n.Quant != driver.QuantNone {
		family += "_q"
	}
	return family
}

// localStep returns the step that follows the all-reduce of a norm. The step writes poison if the
// all-reduce has failed.
func localStep(l *Launch, t *Transport) Step {
	s := Step{
		Kernel: withQuant("norm_local", l.Norm) + "_" + types[l.DataType].name,
		Blocks: int(min(max(l.Norm.Rows, 1), maxLocalBlocks)), Threads: normWarps(l.Norm) * warp,
		Params: normParams(l, t), Local: true,
	}
	s.Overlaps = t.Overlaps && l.overlaps() &&
		s.Blocks*s.Threads <= l.Multiprocessors*rowThreads/waitingDivisor
	return s
}

// waitingDivisor limits a local step that is launched early: its waiting blocks may occupy at most
// 1/waitingDivisor of the GPU.
const waitingDivisor = 4

// maxLocalBlocks limits the grid of local kernels. Their blocks loop over further rows.
const maxLocalBlocks = 1 << 16

// normArguments has the layout of struct Norm in src/norm.h.
type normArguments struct {
	arguments
	residual, weight, quantized, scales uintptr
	scaleRow, scaleGroup                int64
	rows, hidden                        uint32
	epsilon, share, bias                float32
	quant                               uint32
}

// onlyQuantized is a flag in normArguments.quant, as in src/norm.h, for driver.Norm.OnlyQuantized.
const onlyQuantized = 8

func normParams(l *Launch, t *Transport) cuda.Params {
	n := l.Norm
	a := normArguments{
		arguments: l.arguments(t, 0),
		residual:  n.Residual, weight: n.Weight, quantized: n.Quantized, scales: n.Scales,
		scaleRow: n.ScaleStrides[0], scaleGroup: n.ScaleStrides[1],
		rows: uint32(n.Rows), hidden: uint32(n.Hidden),
		epsilon: n.Epsilon, share: 1 / float32(n.Hidden), bias: n.WeightBias, quant: uint32(n.Quant),
	}
	if n.OnlyQuantized {
		a.quant |= onlyQuantized
	}
	return cuda.ParamsOf(&a)
}

// Retired lists kernels that are still in the objects of the collectives but are never launched.
var Retired = []string{"norm_short_bf16", "norm_long_bf16", "add_local_bf16", "rms_local_bf16"}
