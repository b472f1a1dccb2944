package kernels

import (
	"fmt"
	"math"

	"symmem/driver"
	"symmem/internal/cuda"
)

const (
	// maxRowThreads is the largest number of threads that normalize one row, as in src/norm.h.
	maxRowThreads = 512
	packBytes     = 16 // size of driver.NormUnit elements
)

// chooseNorm chooses one kernel for the whole norm or, if that is slower or impossible, the kernel
// that computes the sums. newLocalStep returns the second kernel.
func chooseNorm(l *Launch) error {
	if l.Norm.Rows > math.MaxInt32 { // kernels count rows in 32 bits
		return fmt.Errorf("%w for %d rows", errNoKernel, l.Norm.Rows)
	}
	normCall, sumCall := l.Call, *l.Call
	sumCall.Operation = l.Operation.WithoutNorm()
	l.Call = &sumCall
	err := l.Choose()
	l.Call = normCall
	switch {
	case err != nil:
		return err
	case choosePulledNorm(l), l.Bulk:
		return nil
	case !l.isGeneric && !isAllReduceFaster(l) && chooseFusedNorm(l):
		return nil
	case l.PieceCount > 1:
		return l.doesNotFitError(l.partBytes)
	}
	return nil
}

// choosePulledNorm chooses the kernel with which ranks read each other's rows in symmetric memory.
// It returns false if the kernel does not support the call or is slower. In an all-reduce, the
// output must not overwrite rows that the peer may still read.
func choosePulledNorm(l *Launch) bool {
	norm := l.Norm
	if !l.Bulk || l.isGeneric || norm.Hidden < minPulledHidden || norm.Hidden > maxPulledHidden {
		return false
	}
	if l.Operation == driver.ReduceScatterRMSNorm {
		if l.Ranks != 2 && l.Ranks != 4 {
			return false
		}
	} else if l.Ranks != 2 || l.Send == l.Recv && !norm.OnlyQuantized {
		return false
	}
	l.Kernel, l.Fused = l.kernelName(addQuantSuffix("norm_pull", norm)), true
	l.Threads = warp * int((norm.Hidden/driver.NormUnit+warp-1)/warp)
	l.Blocks = int(min(norm.Rows, maxBulkBlocks, int64(l.Multiprocessors)))
	return true
}

const (
	minPulledHidden = 4096
	maxPulledHidden = 8192 // each thread of a block has one pack
)

// isAllReduceFaster reports whether an all-reduce and a local kernel are faster than a fused
// kernel. An all-reduce spreads a few long rows over many blocks. A block of a fused kernel
// normalizes its rows one after the other, so many short rows take long.
func isAllReduceFaster(l *Launch) bool {
	if l.Operation != driver.AllReduceRMSNorm {
		return false
	}
	rowBytes := 2 * l.Norm.Hidden
	if l.Ranks == 2 && rowBytes <= maxShortRowBytes && l.Norm.Rows > 2*int64(maxNormBlocks(l)) {
		return true
	}
	needsManyBlocks := countChunks(rowBytes, wideLines) > maxRowWarps ||
		rowBytes*int64(l.Ranks-1) > maxFusedRowBytes
	return l.Norm.Rows < minFusedRows && needsManyBlocks
}

const (
	minFusedRows     = 16
	maxFusedRowBytes = 32 << 10 // bytes that a block sends for a row
	maxShortRowBytes = 4 << 10  // measured on 2 H200; unknown for more ranks
)

// chooseFusedNorm chooses a line kernel for the whole norm. It returns false if the rows do not
// fit into exchange memory.
func chooseFusedNorm(l *Launch) bool {
	norm := l.Norm
	rowBytes := 2 * norm.Hidden
	// One-shot and scatter kernels send whole rows once, and two-shot kernels parts of rows twice.
	partBytes, shotCount := rowBytes, int64(1)
	scatters := l.Operation == driver.ReduceScatterRMSNorm
	if l.Ranks > 2 && !scatters && l.partBytes > maxNormOneShotBytes/int64(l.Ranks-1) {
		packCount := (norm.Hidden/driver.NormUnit + int64(l.Ranks) - 1) / int64(l.Ranks)
		partBytes, shotCount = packCount*packBytes, 2
	}
	chunkCount := countChunks(partBytes, wideLines)
	if norm.Rows*chunkCount*wideLines*lineBytes*int64(l.Ranks)*shotCount > halfBytes {
		return false
	}
	name := "norm"
	switch {
	case scatters:
		name, chunkCount = "norm_scatter", chunkCount*int64(l.Ranks-1)
	case shotCount == 2:
		name, chunkCount = "norm_two_shot", chunkCount*int64(l.Ranks)
	}
	if !scatters {
		l.sendStride = 0 // two-shot all-reduces set it
	}
	l.Kernel, l.Fused, l.PieceCount = l.kernelName(addQuantSuffix(name, norm)), true, 1
	// One more warp exchanges headers (digests of the call).
	l.Threads = warp * (1 + max(int(min(chunkCount, maxRowWarps)), normWarpCount(norm)))
	l.Blocks = int(max(1, min(norm.Rows, int64(maxNormBlocks(l)))))
	return true
}

const (
	maxNormOneShotBytes = maxOneShotBytes
	maxRowWarps         = 31 // warps of a block that move data
)

func normWarpCount(norm *driver.Norm) int {
	return int(min((norm.Hidden/driver.NormUnit+warp-1)/warp, maxRowThreads/warp))
}

// maxNormBlocks returns the largest number of blocks. It leaves space on the GPU for a small call
// of another group.
func maxNormBlocks(l *Launch) int {
	return min(maxBlocks, l.Multiprocessors-l.Multiprocessors/spareDivisor)
}

const spareDivisor = 32 // 1/32 of the multiprocessors stays free

func addQuantSuffix(family string, norm *driver.Norm) string {
	if norm.Quant != driver.QuantNone {
		family += "_q"
	}
	return family
}

// newLocalStep returns the launch of the kernel that completes a norm after the ranks' inputs have
// been added up.
func newLocalStep(l *Launch, t *Transport) Step {
	s := Step{
		Kernel: addQuantSuffix("norm_local", l.Norm) + "_" + types[l.DataType].name,
		Blocks: int(min(max(l.Norm.Rows, 1), maxLocalBlocks)), Threads: normWarpCount(l.Norm) * warp,
		Params: normParams(l, t), Local: true,
	}
	s.CanOverlap = t.CanOverlap && l.canOverlap() &&
		s.Blocks*s.Threads <= l.Multiprocessors*maxRowThreads/waitingBlockDivisor
	return s
}

// waitingBlockDivisor limits local kernels that wait for the sums to 1/4 of the GPU.
const waitingBlockDivisor = 4

const maxLocalBlocks = 1 << 16 // each block loops over its rows

// normArguments has the layout of struct Norm in src/norm.h.
type normArguments struct {
	arguments
	residual, weight, quantized, scales uintptr
	scaleRow, scaleGroup                int64
	rows, hidden                        uint32
	epsilon, share, bias                float32
	quant                               uint32
}

const onlyQuantizedFlag = 8 // in normArguments.quant

func normParams(l *Launch, t *Transport) cuda.Params {
	args := newNormArguments(l, t)
	return cuda.ParamsOf(&args)
}

// bulkNormArguments has the layout of struct BulkNorm in src/bulknorm.h.
type bulkNormArguments struct {
	normArguments
	sendAt [MaxRanks]uintptr
}

func bulkNormParams(l *Launch, t *Transport) cuda.Params {
	bulk := bulkNormArguments{normArguments: newNormArguments(l, t)}
	bulk.send += uintptr(int64(l.Rank) * l.sendStride)
	copy(bulk.sendAt[:], l.SendWindow.(PeerLocator).Locate(bulk.send))
	return cuda.ParamsOf(&bulk)
}

func newNormArguments(l *Launch, t *Transport) normArguments {
	norm := l.Norm
	args := normArguments{
		arguments: l.arguments(t, 0),
		residual:  norm.Residual, weight: norm.Weight, quantized: norm.Quantized, scales: norm.Scales,
		scaleRow: norm.ScaleStrides[0], scaleGroup: norm.ScaleStrides[1],
		rows: uint32(norm.Rows), hidden: uint32(norm.Hidden),
		epsilon: norm.Epsilon, share: 1 / float32(norm.Hidden), bias: norm.WeightBias,
		quant: uint32(norm.Quant),
	}
	if norm.OnlyQuantized {
		args.quant |= onlyQuantizedFlag
	}
	return args
}

// Retired lists kernels that are still in the compiled objects, but are never launched.
var Retired = []string{"norm_short_bf16", "norm_long_bf16", "add_local_bf16", "rms_local_bf16"}
