package kernels

import (
	"fmt"
	"math"

	"symmem/driver"
	"symmem/internal/cuda"
)

// This file chooses kernels for AllReduceRMSNorm and ReduceScatterRMSNorm. Both add up the rows of
// all ranks and then normalize the sums. A fused kernel does both. Otherwise, a kernel of an
// AllReduce or ReduceScatter computes the sums, and a local kernel normalizes them.
//
// Line kernels copy data through exchange memory, a block of memory per rank, in chunks of
// wideLines lines. A warp (32 threads) moves a chunk at once. Bulk kernels access the buffers of
// other ranks directly. Generic kernels support every type and operation, but no norm.

const (
	// maxRowThreads is the largest number of threads that normalize one row, as in src/norm.h.
	maxRowThreads = 512
	packBytes     = 16 // size of a pack, which has driver.NormUnit elements; threads move whole packs
	normTypeBytes = 2  // size of an element of any type with norm kernels
)

// chooseNorm chooses a fused kernel or, if that is slower or impossible, the kernel that computes
// the sums. In that case, newLocalStep returns the second kernel.
func chooseNorm(l *Launch) error {
	if l.Norm.Rows > math.MaxInt32 { // kernels count rows in 32 bits
		return fmt.Errorf("%w for %d rows", errNoKernel, l.Norm.Rows)
	}

	// Choose the kernel of the sums first, for a copy of the call without the norm.
	normCall := l.Call
	sumCall := *l.Call
	sumCall.Operation = l.Operation.WithoutNorm()
	l.Call = &sumCall
	err := l.Choose()
	l.Call = normCall
	if err != nil {
		return err
	}

	if l.Bulk {
		tryPulledNorm(l) // otherwise, the bulk kernel computes the sums
		return nil
	}

	canFuse := !l.isGeneric && !isAllReduceFaster(l)
	if canFuse && tryFusedNorm(l) {
		return nil
	}

	if l.PieceCount > 1 {
		return l.doesNotFitError(l.partBytes)
	}

	return nil
}

// tryPulledNorm chooses the fused kernel with which ranks read each other's rows in symmetric
// memory. It does nothing if that kernel does not support the call or is slower. l must have a
// bulk kernel.
func tryPulledNorm(l *Launch) {
	norm := l.Norm
	if l.isGeneric || norm.Hidden < minPulledHidden || norm.Hidden > maxPulledHidden {
		return
	}

	if l.Operation == driver.ReduceScatterRMSNorm {
		if l.Ranks != 2 && l.Ranks != 4 {
			return
		}
	} else { // AllReduceRMSNorm
		// The output would overwrite rows that the peer may still read.
		overwritesInput := l.Send == l.Recv && !norm.OnlyQuantized
		if l.Ranks != 2 || overwritesInput {
			return
		}
	}

	packCount := norm.Hidden / driver.NormUnit // one for each thread
	l.Kernel = l.kernelName(addQuantSuffix("norm_pull", norm))
	l.Fused = true
	l.Threads = warp * int((packCount+warp-1)/warp)
	l.Blocks = int(min(norm.Rows, maxBulkBlocks, int64(l.Multiprocessors)))
}

// Limits of driver.Norm.Hidden, the elements per row, for the kernel of tryPulledNorm.
const (
	minPulledHidden = 4096
	maxPulledHidden = 8192 // 1024 packs, one for each thread of the largest block
)

// isAllReduceFaster reports whether an all-reduce and a local kernel are faster than a fused
// kernel. There are two cases:
//
//   - A few long rows: a fused kernel has only one block for each row, but an all-reduce spreads
//     each row over many blocks.
//   - Many short rows: each block of a fused kernel normalizes its rows one after the other.
func isAllReduceFaster(l *Launch) bool {
	if l.Operation != driver.AllReduceRMSNorm {
		return false
	}

	rowBytes := normTypeBytes * l.Norm.Hidden
	areShort := rowBytes <= maxShortRowBytes
	areManyPerBlock := l.Norm.Rows > 2*int64(maxNormBlocks(l))
	if l.Ranks == 2 && areShort && areManyPerBlock {
		return true
	}

	needsMoreWarps := countChunks(rowBytes, wideLines) > maxRowWarps
	sentBytes := rowBytes * int64(l.Ranks-1) // by a block of a fused kernel, for one row
	areLong := needsMoreWarps || sentBytes > maxFusedRowBytes
	return l.Norm.Rows < minFusedRows && areLong
}

// Limits of fused kernels in isAllReduceFaster.
const (
	minFusedRows     = 16       // with as many rows, a fused kernel uses enough blocks
	maxFusedRowBytes = 32 << 10 // bytes that a block sends for a row
	maxShortRowBytes = 4 << 10  // measured on 2 H200; unknown for more ranks
)

// tryFusedNorm chooses a fused line kernel. If the rows do not fit into exchange memory, it does
// nothing and returns false.
//
// One-shot and scatter kernels send whole rows, once. Two-shot kernels send parts of rows: first
// the inputs to the rank that adds up the part, then the sums to all ranks.
func tryFusedNorm(l *Launch) bool {
	norm := l.Norm
	ranks := int64(l.Ranks)
	scatters := l.Operation == driver.ReduceScatterRMSNorm
	isTwoShot := !scatters && l.Ranks > 2 && l.partBytes > maxNormOneShotBytes/(ranks-1)
	sentBytes := normTypeBytes * norm.Hidden // of a row, to each rank, in each shot
	shotCount := int64(1)
	if isTwoShot {
		packCount := (norm.Hidden/driver.NormUnit + ranks - 1) / ranks // of a rank's part of a row
		sentBytes = packCount * packBytes
		shotCount = 2
	}

	chunkCount := countChunks(sentBytes, wideLines)
	if norm.Rows*chunkCount*wideLines*lineBytes*ranks*shotCount > halfBytes {
		return false
	}

	name := "norm"
	sentChunkCount := chunkCount // chunks that warps of a block can send at the same time
	switch {
	case scatters:
		name = "norm_scatter"
		sentChunkCount = chunkCount * (ranks - 1)
	case isTwoShot:
		name = "norm_two_shot"
		sentChunkCount = chunkCount * ranks
	}

	if !scatters {
		l.sendStride = 0 // the choice of a two-shot kernel for the sums may have set it
	}

	l.Kernel = l.kernelName(addQuantSuffix(name, norm))
	l.Fused = true
	l.PieceCount = 1
	const headerWarp = 1 // exchanges headers (digests of the call)
	dataWarps := int(min(sentChunkCount, maxRowWarps))
	l.Threads = warp * (headerWarp + max(dataWarps, normWarpCount(norm)))
	l.Blocks = int(max(1, min(norm.Rows, int64(maxNormBlocks(l)))))
	return true
}

const (
	maxNormOneShotBytes = maxOneShotBytes
	maxRowWarps         = 31 // warps of a block that move data; the 32nd exchanges headers
)

// normWarpCount returns how many warps of a block normalize a row.
func normWarpCount(norm *driver.Norm) int {
	packCount := norm.Hidden / driver.NormUnit
	return int(min((packCount+warp-1)/warp, maxRowThreads/warp))
}

// maxNormBlocks returns the largest number of blocks of a fused line kernel. It leaves space on the
// GPU for a small call of another group.
func maxNormBlocks(l *Launch) int {
	return min(maxBlocks, l.Multiprocessors-l.Multiprocessors/spareDivisor)
}

const spareDivisor = 32 // 1/32 of the multiprocessors stays free

// addQuantSuffix adds the suffix of kernels that quantize the output, if the norm does.
func addQuantSuffix(family string, norm *driver.Norm) string {
	if norm.Quant != driver.QuantNone {
		family += "_q"
	}

	return family
}

// newLocalStep returns the launch of the local kernel, which normalizes the sums of the ranks'
// inputs.
func newLocalStep(l *Launch, t *Transport) Step {
	s := Step{
		Kernel:  addQuantSuffix("norm_local", l.Norm) + "_" + types[l.DataType].name,
		Blocks:  int(min(max(l.Norm.Rows, 1), maxLocalBlocks)),
		Threads: normWarpCount(l.Norm) * warp,
		Params:  normParams(l, t),
		Local:   true,
	}
	maxWaitingThreads := l.Multiprocessors * maxRowThreads / waitingBlockDivisor
	leavesSpace := s.Blocks*s.Threads <= maxWaitingThreads
	s.CanOverlap = t.CanOverlap && l.canOverlap() && leavesSpace
	return s
}

// waitingBlockDivisor is for local kernels that start before the sums are complete. While they
// wait, they may use only 1/4 of the GPU.
const waitingBlockDivisor = 4

const maxLocalBlocks = 1 << 16 // each block loops over its rows

// normArguments has the layout of struct Norm in src/norm.h, which describes the fields.
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
	// In a ReduceScatter, the kernel reads this rank's part of every input. In an AllReduce,
	// sendStride is 0, and it reads whole inputs.
	bulk.send += uintptr(int64(l.Rank) * l.sendStride)
	window := l.SendWindow.(PeerLocator) // because l.Symmetric was set
	copy(bulk.sendAt[:], window.Locate(bulk.send))
	return cuda.ParamsOf(&bulk)
}

func newNormArguments(l *Launch, t *Transport) normArguments {
	norm := l.Norm
	const onlyPiece = 0
	args := normArguments{
		arguments: l.arguments(t, onlyPiece),
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
