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

// maxTensors limits the tensors of one launch.
const maxTensors = 8

// partsArguments and the following types have the layouts of structs in src/call.h.
type partsArguments struct{ at, bytes [MaxRanks]int64 }

type tensorArguments struct {
	send, recv uintptr
	first      int64
	parts      partsArguments
	recvAt     [MaxRanks]uintptr
}

// rowsArguments holds the first arguments of all rows kernels. A gather sets tensorsOrOp to the
// number of tensors, and chunksOrDivisor to the number of chunks. A scatter sets these fields to
// the reduction and the divisor.
type rowsArguments struct {
	rank, ranks, tensorsOrOp, chunksOrDivisor uint32
	digest                                    uint64
	timeout                                   time.Duration
	report                                    uintptr
	exchange                                  [MaxRanks]uintptr
}

type gatherArguments struct {
	rowsArguments
	tensor [maxTensors]tensorArguments
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
	slices          []slice
	chunks          int64 // total of all slices, for line kernels
}

// slice selects a range of bytes in each rank's part of a call. If a part is shorter than the
// range, the range ends with the part.
type slice struct {
	call          *driver.Call
	offset, bytes int64
}

// ChooseRows chooses the kernels of an AllGatherV or ReduceScatterV, or of a list of gathers. The
// first call must be l.Call. l.Symmetric must be set if every rank can access, on all ranks, the
// buffers that are divided into parts.
func ChooseRows(l Launch, calls []*driver.Call) (*Rows, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}
	rows := &Rows{launch: l}
	rows.launch.divisor = 1
	bytes := int64(0)
	for _, call := range calls {
		gathers := call.Operation == driver.AllGather || call.Operation == driver.AllGatherV
		if !gathers && (call.Operation != driver.ReduceScatterV || len(calls) > 1) {
			return nil, fmt.Errorf("%w for a list with %v", errNoKernel, call.Operation)
		}
		bytes += rows.largestPart(call)
	}
	if l.Operation == driver.ReduceScatterV {
		if err := rows.launch.setReduction(); err != nil {
			return nil, err
		}
		if rows.launch.generic {
			return nil, fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType,
				l.ReduceOp)
		}
	}
	rows.launch.Bulk = l.Symmetric && bytes > min(maxPartBytes, oneShotLimit(l.Ranks))
	rows.split(calls)
	if lines := !rows.launch.Bulk && !l.Operation.Reduces(); lines && bytes > maxGather(l.Ranks) {
		return nil, l.errDoesNotFit(bytes)
	}
	return rows, nil
}

// maxGather limits the bytes that line kernels gather. On four H200 GPUs, four launches that fill
// exchange memory are faster than a group of NCCL's all-gathers, but eight are slower.
func maxGather(ranks int) int64 { return 4 * oneShotLimit(ranks) }

func (rows *Rows) largestPart(call *driver.Call) int64 {
	p := rows.parts(slice{call: call, bytes: math.MaxInt64})
	return slices.Max(p.bytes[:])
}

// split divides the calls among launches, which are the same on all ranks.
func (rows *Rows) split(calls []*driver.Call) {
	maxChunks := halfBytes / int64(rows.launch.Ranks) / (wideLines * lineBytes)
	var next rowsLaunch
	for _, call := range calls {
		for offset, left := int64(0), rows.largestPart(call); left > 0; {
			room := left
			if !rows.launch.Bulk {
				room = (maxChunks - next.chunks) * wideLines * lineDataBytes / pieceUnit * pieceUnit
			}
			if len(next.slices) == maxTensors || room <= 0 {
				rows.add(next)
				next = rowsLaunch{}
				continue
			}
			bytes := min(left, room)
			next.slices = append(next.slices, slice{call, offset, bytes})
			next.chunks += chunks(bytes, wideLines)
			offset, left = offset+bytes, left-bytes
		}
	}
	rows.add(next)
}

// add appends a launch, which is needed even without data, because it also compares the calls.
func (rows *Rows) add(next rowsLaunch) {
	l, family := &rows.launch, "rows"
	if l.Bulk {
		l.Blocks, l.Threads, family = min(maxBulkBlocks, l.Multiprocessors), 512, "rows_bulk"
	} else {
		l.setGrid(next.chunks, noSmallBlocks, gridSize{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512})
	}
	if l.Operation.Reduces() {
		family += "_sum"
	} else {
		family += "_copy"
	}
	next.kernel, next.blocks, next.threads = l.kernelName(family), l.Blocks, l.Threads
	rows.launches = append(rows.launches, next)
}

func (rows *Rows) parts(s slice) (p partsArguments) {
	c, size := s.call, int64(s.call.DataType.Size())
	for r := range rows.launch.Ranks {
		start, count := int64(r)*c.Count, c.Count
		if c.Operation.Reduces() {
			start, count = c.Splits.SendOffsets[r], c.Splits.SendCounts[r]
		} else if c.Splits != nil {
			start, count = c.Splits.RecvOffsets[r], c.Splits.RecvCounts[r]
		}
		p.at[r], p.bytes[r] = start*size+s.offset, min(max(0, count*size-s.offset), s.bytes)
	}
	return p
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
		next := &rows.launches[i]
		s := Step{
			Kernel: next.kernel, Blocks: next.blocks, Threads: next.threads,
			Overlaps: t.Overlaps && !rows.launch.Bulk, digest: unsafe.Offsetof(rowsArguments{}.digest),
		}
		if rows.launch.Operation.Reduces() {
			s.Params = rows.scatter(t, next)
		} else {
			s.Params = rows.gather(t, next)
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

func (rows *Rows) gather(t *Transport, next *rowsLaunch) cuda.Params {
	a := gatherArguments{rowsArguments: rows.arguments(t)}
	a.tensorsOrOp, a.chunksOrDivisor = uint32(len(next.slices)), uint32(next.chunks)
	first := int64(0)
	for i, s := range next.slices {
		tensor := &a.tensor[i]
		tensor.send, tensor.recv, tensor.first = s.call.Send+uintptr(s.offset), s.call.Recv, first
		tensor.parts = rows.parts(s)
		first += chunks(s.bytes, wideLines)
		if rows.launch.Bulk {
			copy(tensor.recvAt[:], s.call.RecvWindow.(PeerLocator).Locate(s.call.Recv))
		}
	}
	return cuda.ParamsOf(&a)
}

func (rows *Rows) scatter(t *Transport, next *rowsLaunch) cuda.Params {
	a := scatterArguments{rowsArguments: rows.arguments(t), chunks: next.chunks}
	a.tensorsOrOp, a.chunksOrDivisor = rows.launch.op, rows.launch.divisor
	for _, s := range next.slices { // a scatter has at most one slice
		a.send, a.recv, a.parts = s.call.Send, s.call.Recv+uintptr(s.offset), rows.parts(s)
		if rows.launch.Bulk {
			copy(a.sendAt[:], s.call.SendWindow.(PeerLocator).Locate(s.call.Send))
		}
	}
	return cuda.ParamsOf(&a)
}
