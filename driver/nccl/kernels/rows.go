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

const maxTensorCount = 8 // maximum number of tensors in a launch

// partsArguments and the following types have the layouts of structs in src/call.h. at holds the
// offsets of the ranks' parts.
type partsArguments struct{ at, bytes [MaxRanks]int64 }

type tensorArguments struct {
	send, recv uintptr
	first      int64
	parts      partsArguments
	recvAt     [MaxRanks]uintptr
}

// rowsArguments holds the first arguments of all kernels for rows. A gather has the numbers of
// tensors and chunks, and a scatter the reduction and the divisor.
type rowsArguments struct {
	rank, ranks, tensorsOrOp, chunksOrDivisor uint32
	digest                                    uint64
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
	sendAt     [MaxRanks]uintptr
}

// Rows implements Work for an AllGatherV or ReduceScatterV, or for a list of gathers.
type Rows struct {
	common   Launch
	launches []rowsLaunch
}

type rowsLaunch struct {
	kernel          string
	blocks, threads int
	sections        []partSection
	chunkCount      int64 // total of all sections; used by line kernels
}

// partSection is a range of bytes in each rank's part of a call. It ends early where a part does.
type partSection struct {
	call          *driver.Call
	offset, bytes int64
}

// ChooseRows chooses the kernels of an AllGatherV or ReduceScatterV, or of a list of gathers. The
// first call must be l.Call. l.Symmetric must be set if each rank can access the buffers with parts
// of all ranks.
func ChooseRows(l Launch, calls []*driver.Call) (*Rows, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}
	rows := &Rows{common: l}
	rows.common.divisor = 1
	bytes := int64(0)
	for _, call := range calls {
		isGather := call.Operation == driver.AllGather || call.Operation == driver.AllGatherV
		if !isGather && (call.Operation != driver.ReduceScatterV || len(calls) > 1) {
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
	rows.common.Bulk = l.Symmetric && bytes > min(maxPartBytes, oneShotLimit(l.Ranks))
	rows.splitIntoLaunches(calls)
	usesLines := !rows.common.Bulk && !l.Operation.Reduces()
	if usesLines && bytes > maxGatherBytes(l.Ranks) {
		return nil, l.doesNotFitError(bytes)
	}
	return rows, nil
}

// maxGatherBytes returns the largest size of a gather in line kernels. On four H200 GPUs, four
// launches that fill exchange memory are faster than NCCL's all-gathers, but eight launches are
// slower.
func maxGatherBytes(ranks int) int64 { return 4 * oneShotLimit(ranks) }

func (rows *Rows) largestPartBytes(call *driver.Call) int64 {
	parts := rows.makeParts(partSection{call: call, bytes: math.MaxInt64})
	return slices.Max(parts.bytes[:])
}

// splitIntoLaunches sets rows.launches. It must have the same results on all ranks.
func (rows *Rows) splitIntoLaunches(calls []*driver.Call) {
	maxChunks := halfBytes / int64(rows.common.Ranks) / (wideLines * lineBytes)
	var current rowsLaunch
	for _, call := range calls {
		for offset, remaining := int64(0), rows.largestPartBytes(call); remaining > 0; {
			freeBytes := remaining
			if !rows.common.Bulk {
				freeBytes = (maxChunks - current.chunkCount) * wideLines * lineDataBytes
				freeBytes = freeBytes / pieceUnit * pieceUnit
			}
			if len(current.sections) == maxTensorCount || freeBytes <= 0 {
				rows.addLaunch(current)
				current = rowsLaunch{}
				continue
			}
			bytes := min(remaining, freeBytes)
			current.sections = append(current.sections, partSection{call, offset, bytes})
			current.chunkCount += countChunks(bytes, wideLines)
			offset, remaining = offset+bytes, remaining-bytes
		}
	}
	rows.addLaunch(current)
}

// addLaunch adds a launch and chooses its kernel and grid. It is called even without data, because
// a launch is needed to compare the calls.
func (rows *Rows) addLaunch(launch rowsLaunch) {
	l, family := &rows.common, "rows"
	if l.Bulk {
		l.Blocks, l.Threads, family = min(maxBulkBlocks, l.Multiprocessors), 512, "rows_bulk"
	} else {
		limit := gridSize{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
		l.setGrid(launch.chunkCount, noSmallBlocks, limit)
	}
	if l.Operation.Reduces() {
		family += "_sum"
	} else {
		family += "_copy"
	}
	launch.kernel, launch.blocks, launch.threads = l.kernelName(family), l.Blocks, l.Threads
	rows.launches = append(rows.launches, launch)
}

// makeParts returns the offsets and sizes of the ranks' parts of a section, in bytes.
func (rows *Rows) makeParts(section partSection) (parts partsArguments) {
	call, elementBytes := section.call, int64(section.call.DataType.Size())
	for r := range rows.common.Ranks {
		firstElement, count := int64(r)*call.Count, call.Count
		if call.Operation.Reduces() {
			firstElement, count = call.Splits.SendOffsets[r], call.Splits.SendCounts[r]
		} else if call.Splits != nil {
			firstElement, count = call.Splits.RecvOffsets[r], call.Splits.RecvCounts[r]
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
		if rows.common.Operation.Reduces() {
			s.Params = rows.scatterParams(t, launch)
		} else {
			s.Params = rows.gatherParams(t, launch)
		}
		steps = append(steps, s)
	}
	return steps
}

func (rows *Rows) makeArguments(t *Transport) rowsArguments {
	args := rowsArguments{
		rank: uint32(rows.common.Rank), ranks: uint32(rows.common.Ranks), digest: rows.common.Digest,
		timeout: t.Timeout, report: t.Report,
	}
	copy(args.exchange[:], t.Exchange)
	return args
}

func (rows *Rows) gatherParams(t *Transport, launch *rowsLaunch) cuda.Params {
	args := gatherArguments{rowsArguments: rows.makeArguments(t)}
	args.tensorsOrOp = uint32(len(launch.sections))
	args.chunksOrDivisor = uint32(launch.chunkCount)
	firstChunk := int64(0)
	for i, section := range launch.sections {
		tensor := &args.tensor[i]
		tensor.send = section.call.Send + uintptr(section.offset)
		tensor.recv, tensor.first = section.call.Recv, firstChunk
		tensor.parts = rows.makeParts(section)
		firstChunk += countChunks(section.bytes, wideLines)
		if rows.common.Bulk {
			copy(tensor.recvAt[:], section.call.RecvWindow.(PeerLocator).Locate(section.call.Recv))
		}
	}
	return cuda.ParamsOf(&args)
}

func (rows *Rows) scatterParams(t *Transport, launch *rowsLaunch) cuda.Params {
	args := scatterArguments{rowsArguments: rows.makeArguments(t), chunks: launch.chunkCount}
	args.tensorsOrOp, args.chunksOrDivisor = rows.common.reduction, rows.common.divisor
	for _, section := range launch.sections { // a scatter has at most one section
		args.send = section.call.Send
		args.recv = section.call.Recv + uintptr(section.offset)
		args.parts = rows.makeParts(section)
		if rows.common.Bulk {
			copy(args.sendAt[:], section.call.SendWindow.(PeerLocator).Locate(section.call.Send))
		}
	}
	return cuda.ParamsOf(&args)
}
