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

// maxTensorCount is the largest number of tensors of one launch.
const maxTensorCount = 8

// partsArguments and the following types have the layouts and field names of structs in src/call.h.
// at holds the offsets of the ranks' parts.
type partsArguments struct{ at, bytes [MaxRanks]int64 }

type tensorArguments struct {
	send, recv uintptr
	first      int64
	parts      partsArguments
	recvAt     [MaxRanks]uintptr
}

// rowsArguments holds the first arguments of all kernels for rows. A gather sets tensorsOrOp to the
// number of tensors, and chunksOrDivisor to the number of chunks. A scatter sets tensorsOrOp to the
// reduction, and chunksOrDivisor to the divisor.
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
	launch   Launch
	launches []rowsLaunch
}

type rowsLaunch struct {
	kernel          string
	blocks, threads int
	sections        []partSection
	chunks          int64 // in all sections; used by line kernels
}

// slice selects a range of bytes in each rank's part of a call. If a part is shorter than the
// range, the range ends with the part.
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
	rows := &Rows{launch: l}
	rows.launch.divisor = 1
	bytes := int64(0)
	for _, call := range calls {
		isGather := call.Operation == driver.AllGather || call.Operation == driver.AllGatherV
		if !isGather && (call.Operation != driver.ReduceScatterV || len(calls) > 1) {
			return nil, fmt.Errorf("%w for a list with %v", errNoKernel, call.Operation)
		}
		bytes += rows.largestPartBytes(call)
	}
	if l.Operation == driver.ReduceScatterV {
		if err := rows.launch.setReduction(); err != nil {
			return nil, err
		}
		if rows.launch.isGeneric {
			return nil, fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType,
				l.ReduceOp)
		}
	}
	rows.launch.Bulk = l.Symmetric && bytes > min(maxPartBytes, oneShotLimit(l.Ranks))
	rows.splitIntoLaunches(calls)
	usesLines := !rows.launch.Bulk && !l.Operation.Reduces()
	if usesLines && bytes > maxGatherBytes(l.Ranks) {
		return nil, l.doesNotFitError(bytes)
	}
	return rows, nil
}

// maxGatherBytes returns the number of bytes that line kernels gather at most. On four H200 GPUs,
// four launches that fill exchange memory are faster than NCCL's all-gathers, but eight launches
// are slower.
func maxGatherBytes(ranks int) int64 { return 4 * oneShotLimit(ranks) }

func (rows *Rows) largestPartBytes(call *driver.Call) int64 {
	parts := rows.makeParts(partSection{call: call, bytes: math.MaxInt64})
	return slices.Max(parts.bytes[:])
}

// splitIntoLaunches divides the calls among launches, which are the same on all ranks.
func (rows *Rows) splitIntoLaunches(calls []*driver.Call) {
	maxChunks := halfBytes / int64(rows.launch.Ranks) / (wideLines * lineBytes)
	var current rowsLaunch
	for _, call := range calls {
		for offset, remaining := int64(0), rows.largestPartBytes(call); remaining > 0; {
			freeBytes := remaining
			if !rows.launch.Bulk {
				freeBytes = (maxChunks - current.chunks) * wideLines * lineDataBytes / pieceUnit * pieceUnit
			}
			if len(current.sections) == maxTensorCount || freeBytes <= 0 {
				rows.addLaunch(current)
				current = rowsLaunch{}
				continue
			}
			bytes := min(remaining, freeBytes)
			current.sections = append(current.sections, partSection{call, offset, bytes})
			current.chunks += countChunks(bytes, wideLines)
			offset, remaining = offset+bytes, remaining-bytes
		}
	}
	rows.addLaunch(current)
}

// addLaunch appends a launch. A call without data also needs a launch, which compares the calls of
// all ranks.
func (rows *Rows) addLaunch(launch rowsLaunch) {
	l, family := &rows.launch, "rows"
	if l.Bulk {
		l.Blocks, l.Threads, family = min(maxBulkBlocks, l.Multiprocessors), 512, "rows_bulk"
	} else {
		limit := gridSize{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
		l.setGrid(launch.chunks, noSmallBlocks, limit)
	}
	if l.Operation.Reduces() {
		family += "_sum"
	} else {
		family += "_copy"
	}
	launch.kernel, launch.blocks, launch.threads = l.kernelName(family), l.Blocks, l.Threads
	rows.launches = append(rows.launches, launch)
}

func (rows *Rows) makeParts(section partSection) (parts partsArguments) {
	call, size := section.call, int64(section.call.DataType.Size())
	for r := range rows.launch.Ranks {
		start, count := int64(r)*call.Count, call.Count
		if call.Operation.Reduces() {
			start, count = call.Splits.SendOffsets[r], call.Splits.SendCounts[r]
		} else if call.Splits != nil {
			start, count = call.Splits.RecvOffsets[r], call.Splits.RecvCounts[r]
		}
		parts.at[r] = start*size + section.offset
		parts.bytes[r] = min(max(0, count*size-section.offset), section.bytes)
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
			CanOverlap:   t.CanOverlap && !rows.launch.Bulk,
			digestOffset: unsafe.Offsetof(rowsArguments{}.digest),
		}
		if rows.launch.Operation.Reduces() {
			s.Params = rows.scatterParams(t, launch)
		} else {
			s.Params = rows.gatherParams(t, launch)
		}
		steps = append(steps, s)
	}
	return steps
}

func (rows *Rows) arguments(t *Transport) rowsArguments {
	a := rowsArguments{
		rank: uint32(rows.launch.Rank), ranks: uint32(rows.launch.Ranks), digest: rows.launch.Digest,
		timeout: t.Timeout, report: t.Report,
	}
	copy(a.exchange[:], t.Exchange)
	return a
}

func (rows *Rows) gatherParams(t *Transport, launch *rowsLaunch) cuda.Params {
	arguments := gatherArguments{rowsArguments: rows.arguments(t)}
	arguments.tensorsOrOp = uint32(len(launch.sections))
	arguments.chunksOrDivisor = uint32(launch.chunks)
	firstChunk := int64(0)
	for i, section := range launch.sections {
		tensor := &arguments.tensor[i]
		tensor.send = section.call.Send + uintptr(section.offset)
		tensor.recv, tensor.first = section.call.Recv, firstChunk
		tensor.parts = rows.makeParts(section)
		firstChunk += countChunks(section.bytes, wideLines)
		if rows.launch.Bulk {
			copy(tensor.recvAt[:], section.call.RecvWindow.(PeerLocator).Locate(section.call.Recv))
		}
	}
	return cuda.ParamsOf(&arguments)
}

func (rows *Rows) scatterParams(t *Transport, launch *rowsLaunch) cuda.Params {
	arguments := scatterArguments{rowsArguments: rows.arguments(t), chunks: launch.chunks}
	arguments.tensorsOrOp, arguments.chunksOrDivisor = rows.launch.reduction, rows.launch.divisor
	for _, section := range launch.sections { // a scatter has at most one section
		arguments.send = section.call.Send
		arguments.recv = section.call.Recv + uintptr(section.offset)
		arguments.parts = rows.makeParts(section)
		if rows.launch.Bulk {
			copy(arguments.sendAt[:], section.call.SendWindow.(PeerLocator).Locate(section.call.Send))
		}
	}
	return cuda.ParamsOf(&arguments)
}
