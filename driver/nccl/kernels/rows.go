package kernels

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// This file is about calls in which the ranks' parts of a buffer can differ in size, such as rows
// of a matrix: gathers (AllGather or AllGatherV) and scatters (ReduceScatterV). They run in rows
// kernels. One launch can run several gathers, and each of them is a tensor of the launch.
//
// There are two kinds of kernels. Line kernels copy data through exchange memory, a block of memory
// per rank, in chunks of wideLines lines. Bulk kernels access the buffers of other ranks directly.

const maxTensorCount = 8 // maximum number of tensors in a launch, as in src/call.h

// partsArguments and the following types have the layouts of structs in src/call.h, which describes
// their fields. at holds the offsets of the ranks' parts, in bytes.
type partsArguments struct{ at, bytes [MaxRanks]int64 }

type tensorArguments struct {
	send, recv uintptr
	first      int64 // number of the tensor's first chunk; chunks are counted over all tensors
	parts      partsArguments
	recvAt     [MaxRanks]uintptr // recv of each rank; used by bulk kernels
}

// rowsArguments holds the first arguments of all rows kernels. In a gather, tensorsOrOp is the
// number of tensors, and chunksOrDivisor the number of chunks. In a scatter, they are the reduction
// and the divisor.
type rowsArguments struct {
	rank, ranks, tensorsOrOp, chunksOrDivisor uint32
	digest                                    uint64 // identifies the call
	timeout                                   time.Duration
	report                                    uintptr
	exchange                                  [MaxRanks]uintptr
}

type gatherArguments struct {
	rowsArguments
	tensor [maxTensorCount]tensorArguments
}

type scatterArguments struct {
	rowsArguments
	send, recv uintptr
	chunks     int64
	parts      partsArguments
	sendAt     [MaxRanks]uintptr // send of each rank; used by bulk kernels
}

// Rows implements Work for an AllGatherV or ReduceScatterV, or for a list of gathers.
type Rows struct {
	common   Launch // fields that all launches share
	launches []rowsLaunch
}

// rowsLaunch is one kernel launch. It has one section for each of its tensors.
type rowsLaunch struct {
	kernel          string
	blocks, threads int
	sections        []partSection
	chunkCount      int64 // total of all sections; used by line kernels
}

// partSection is a range of bytes in every rank's part of a call. In a shorter part, it ends where
// the part ends.
type partSection struct {
	call   *driver.Call
	offset int64 // of the section in each part
	bytes  int64
}

// ChooseRows chooses the kernels of an AllGatherV or ReduceScatterV, or of a list of gathers.
// l.Call must be calls[0]. l.Symmetric must be set if every rank can access the outputs of a
// gather, or the inputs of a scatter, on all ranks.
func ChooseRows(l Launch, calls []*driver.Call) (*Rows, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	rows := &Rows{common: l}
	rows.common.divisor = 1
	bytes := int64(0) // of the largest parts of all calls
	for _, call := range calls {
		isGather := call.Operation == driver.AllGather || call.Operation == driver.AllGatherV
		isOnlyScatter := call.Operation == driver.ReduceScatterV && len(calls) == 1
		if !isGather && !isOnlyScatter {
			return nil, fmt.Errorf("%w for a list with %v", errNoKernel, call.Operation)
		}

		bytes += rows.largestPartBytes(call)
	}

	if l.Operation == driver.ReduceScatterV {
		if err := rows.common.setReduction(); err != nil {
			return nil, err
		}

		if rows.common.isGeneric {
			return nil, fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType,
				l.ReduceOp)
		}
	}

	maxLineBytes := min(maxPartBytes, oneShotLimit(l.Ranks)) // above this, bulk kernels are faster
	rows.common.Bulk = l.Symmetric && bytes > maxLineBytes
	rows.splitIntoLaunches(calls)
	usesLines := !rows.common.Bulk && !l.Operation.Reduces()
	if usesLines && bytes > maxGatherBytes(l.Ranks) {
		return nil, l.doesNotFitError(bytes)
	}

	return rows, nil
}

// maxGatherBytes returns the largest size of a gather in line kernels, which is four launches that
// fill exchange memory. On four H200 GPUs, four launches are faster than NCCL's all-gathers, but
// eight launches are slower.
func maxGatherBytes(ranks int) int64 { return 4 * oneShotLimit(ranks) }

// largestPartBytes returns the size of the largest part of any rank in the call.
func (rows *Rows) largestPartBytes(call *driver.Call) int64 {
	wholeParts := partSection{call: call, offset: 0, bytes: math.MaxInt64}
	parts := rows.makeParts(wholeParts)
	return slices.Max(parts.bytes[:])
}

// splitIntoLaunches sets rows.launches. It must have the same results on all ranks.
func (rows *Rows) splitIntoLaunches(calls []*driver.Call) {
	maxChunks := halfBytes / int64(rows.common.Ranks) / (wideLines * lineBytes)
	var current rowsLaunch
	for _, call := range calls {
		offset := int64(0) // in each part; all bytes before it are in launches
		remaining := rows.largestPartBytes(call)
		for remaining > 0 {
			freeBytes := remaining // how much current has space for
			if !rows.common.Bulk {
				freeBytes = (maxChunks - current.chunkCount) * wideLines * lineDataBytes
				freeBytes = freeBytes / pieceUnit * pieceUnit
			}

			isFull := len(current.sections) == maxTensorCount || freeBytes <= 0
			if isFull {
				rows.addLaunch(current)
				current = rowsLaunch{} // not full, so the loop makes progress
				continue
			}

			bytes := min(remaining, freeBytes)
			section := partSection{call: call, offset: offset, bytes: bytes}
			current.sections = append(current.sections, section)
			current.chunkCount += countChunks(bytes, wideLines)
			offset += bytes
			remaining -= bytes
		}
	}

	rows.addLaunch(current)
}

// rowsThreads is the number of threads in a block of bulk kernels, and the largest number in a
// block of line kernels.
const rowsThreads = 512

// addLaunch adds a launch and chooses its kernel and grid. It is called even without data, because
// a launch is needed to compare the calls.
func (rows *Rows) addLaunch(launch rowsLaunch) {
	l := &rows.common
	family := "rows"
	if l.Bulk {
		family = "rows_bulk"
		l.Blocks = min(maxBulkBlocks, l.Multiprocessors)
		l.Threads = rowsThreads
	} else {
		// A quarter of the multiprocessors stays free for other groups.
		threeQuarters := (3*l.Multiprocessors + 3) / 4 // rounded up
		limit := gridSize{blocks: min(maxBlocks, threeQuarters), threads: rowsThreads}
		l.setGrid(launch.chunkCount, noSmallBlocks, limit)
	}

	if l.Operation.Reduces() {
		family += "_sum"
	} else {
		family += "_copy"
	}

	launch.kernel = l.kernelName(family)
	launch.blocks = l.Blocks
	launch.threads = l.Threads
	rows.launches = append(rows.launches, launch)
}

// makeParts returns, for each rank's part, the offset in the buffer and the size of a section of
// that part, in bytes.
func (rows *Rows) makeParts(section partSection) (parts partsArguments) {
	call := section.call
	elementBytes := int64(call.DataType.Size())
	for r := range rows.common.Ranks {
		// In an AllGather, which has no splits, all parts have call.Count elements.
		firstElement := int64(r) * call.Count
		count := call.Count
		if call.Operation.Reduces() {
			firstElement = call.Splits.SendOffsets[r]
			count = call.Splits.SendCounts[r]
		} else if call.Splits != nil {
			firstElement = call.Splits.RecvOffsets[r]
			count = call.Splits.RecvCounts[r]
		}

		parts.at[r] = firstElement*elementBytes + section.offset
		parts.bytes[r] = min(max(0, count*elementBytes-section.offset), section.bytes)
	}

	return parts
}

// Remark implements Work.
func (rows *Rows) Remark() string {
	if n := len(rows.launches); n > 1 {
		return fmt.Sprintf("it takes %d launches", n)
	}

	return ""
}

// Steps implements Work.
func (rows *Rows) Steps(t *Transport) (steps []Step) {
	for i := range rows.launches {
		launch := &rows.launches[i]
		s := Step{
			Kernel: launch.kernel, Blocks: launch.blocks, Threads: launch.threads,
			CanOverlap:   t.CanOverlap && !rows.common.Bulk,
			digestOffset: unsafe.Offsetof(rowsArguments{}.digest),
		}
		// Params must have the digest at digestOffset. Both kinds begin with rowsArguments.
		if rows.common.Operation.Reduces() {
			s.Params = rows.scatterParams(t, launch)
		} else {
			s.Params = rows.gatherParams(t, launch)
		}

		steps = append(steps, s)
	}

	return steps
}

// makeArguments returns the arguments that gathers and scatters share.
func (rows *Rows) makeArguments(t *Transport) rowsArguments {
	args := rowsArguments{
		rank: uint32(rows.common.Rank), ranks: uint32(rows.common.Ranks), digest: rows.common.Digest,
		timeout: t.Timeout, report: t.Report,
	}
	copy(args.exchange[:], t.Exchange)
	return args
}

// gatherParams returns the arguments of a launch of gathers.
func (rows *Rows) gatherParams(t *Transport, launch *rowsLaunch) cuda.Params {
	args := gatherArguments{rowsArguments: rows.makeArguments(t)}
	args.tensorsOrOp = uint32(len(launch.sections))
	args.chunksOrDivisor = uint32(launch.chunkCount)
	firstChunk := int64(0)
	for i, section := range launch.sections {
		tensor := &args.tensor[i]
		tensor.send = section.call.Send + uintptr(section.offset)
		tensor.recv = section.call.Recv
		tensor.first = firstChunk
		tensor.parts = rows.makeParts(section)
		firstChunk += countChunks(section.bytes, wideLines)
		if rows.common.Bulk {
			window := section.call.RecvWindow.(PeerLocator) // because l.Symmetric was set
			copy(tensor.recvAt[:], window.Locate(section.call.Recv))
		}
	}

	return cuda.ParamsOf(&args)
}

// scatterParams returns the arguments of a launch of a scatter.
func (rows *Rows) scatterParams(t *Transport, launch *rowsLaunch) cuda.Params {
	args := scatterArguments{rowsArguments: rows.makeArguments(t), chunks: launch.chunkCount}
	args.tensorsOrOp = rows.common.reduction
	args.chunksOrDivisor = rows.common.divisor
	for _, section := range launch.sections { // a scatter has at most one section
		args.send = section.call.Send
		args.recv = section.call.Recv + uintptr(section.offset)
		args.parts = rows.makeParts(section)
		if rows.common.Bulk {
			window := section.call.SendWindow.(PeerLocator) // because l.Symmetric was set
			copy(args.sendAt[:], window.Locate(section.call.Send))
		}
	}

	return cuda.ParamsOf(&args)
}
