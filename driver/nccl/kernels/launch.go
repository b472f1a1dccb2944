package kernels

import (
	"errors"
	"fmt"
	"strings"

	"symmem/driver"
)

// AfterAll is a kernel of one thread that has one integer argument and does nothing. It is launched
// without overlap, so work after it in the stream starts only when all work before it has ended,
// including kernels that overlap with each other.
const AfterAll = "after_all"

// MaxRanks is the largest number of ranks that the kernels support.
const MaxRanks = 8

// The layout of exchange memory, as in src/call.h.
const (
	// ExchangeBytes is the size of the exchange memory of one rank in one group, which must be zero
	// initially. It is large enough for sums of 7 MiB. (An NCCL communicator allocates hundreds of
	// MiB.)
	ExchangeBytes = 32 << 20
	pageBytes     = 4096
	// halfBytes is the size of the memory for the lines of one call.
	halfBytes = (ExchangeBytes - exchangeHeader) / 2 / pageBytes * pageBytes
	// exchangeHeader is sizeof(Exchange).
	exchangeHeader = 4096 + 4096 + maxBulkBlocks*MaxRanks*8
	// FaultOffset is the offset of the fault word, which has 32 bits and is not 0 once a kernel of the
	// rank has failed.
	FaultOffset = 8

	maxBlocks     = 256
	maxBulkBlocks = 128
)

// A line of 128 bytes has 120 bytes of data. A warp moves a chunk of lines at once: 8 bytes per
// thread in line kernels, and 16 in wide and unrolled kernels.
const (
	lineBytes     = 128
	lineDataBytes = 120
	lineLines     = 2
	wideLines     = 4
	warp          = 32
)

// Overlaps reports whether the kernel may start before the kernels before it in the stream have
// ended.
func (l *Launch) Overlaps() bool { return !l.Bulk && !l.any }

// Launch describes a call, and how to launch it. The caller sets the first group of fields, and
// Choose the others.
type Launch struct {
	// All fields that Choose reads are equal on all ranks, except for Rank.
	*driver.Call
	// Rank is this rank's number in the group of Ranks ranks.
	Rank, Ranks int
	// Formula selects the order in which the elements of ranks are combined. RankOrder selects the
	// same kernels as AnyFormula.
	Formula driver.Formula
	// Symmetric reports whether both buffers are in windows that every rank can access directly.
	Symmetric bool
	// Multiprocessors is the smallest number of multiprocessors of any rank's GPU.
	Multiprocessors int

	// Kernel is the name of the kernel, Blocks and Threads its grid.
	Kernel          string
	Blocks, Threads int
	// Bulk reports whether the kernel needs the buffers of all ranks.
	Bulk bool
	// Pieces is the number of successive launches of the call: see Params.
	Pieces int
	// partBytes is the size of a part of the call. bytes is the size of each piece except the last, which
	// may be smaller.
	partBytes, pieceBytes  int64
	sendStride, recvStride int64  // distances between the parts of the buffers
	sendTo, recvFrom       uint32 // bit sets of ranks
	op, divisor            uint32
	// any reports whether the call needs a kernel of any reduction (suffix _any).
	any bool
}

// errNoKernel is wrapped by the errors of Choose: there is no kernel for the call.
var errNoKernel = errors.New("symmem has no kernel")

// Choose chooses the kernel of the call, or returns the reason why there is none. All ranks get the
// same result, except for sendTo and recvFrom. For AllReduceRMSNorm it chooses the first kernel,
// the all-reduce; Local describes the second.
func (l *Launch) Choose() error {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}
	if call := l.Call; call.Operation == driver.AllReduceRMSNorm {
		sum := *call
		sum.Operation, l.Call = driver.AllReduce, &sum
		err := l.Choose()
		if l.Call = call; err == nil && !l.Bulk && l.partBytes > twoShotLimit(l.Ranks) {
			err = l.doesNotFit(l.partBytes)
		}
		return err
	}
	if err := l.parts(); err != nil {
		return err
	}
	overPeers := l.Symmetric && (l.Operation != driver.AllToAll || l.Send != l.Recv)
	if overPeers && l.pieceBytes > l.lineLimit() {
		l.chooseBulk()
		return nil
	}
	if l.chooseLines() {
		return nil
	}
	switch {
	case overPeers:
		l.chooseBulk()
	case l.Operation.Reduces():
		l.split()
	case !l.Symmetric:
		return l.doesNotFit(l.pieceBytes)
	default:
		return fmt.Errorf("%w for in-place %v with parts of %d bytes", errNoKernel, l.Operation, l.pieceBytes)
	}
	return nil
}

// split splits a reduction that does not fit into exchange memory into pieces that do, identically on
// all ranks. To the kernels each piece is a separate call with its own number.
func (l *Launch) split() {
	most := oneShotLimit(l.Ranks)
	if l.Operation == driver.AllReduce {
		most = twoShotLimit(l.Ranks)
	}
	most = most / pieceUnit * pieceUnit
	pieces := (l.partBytes + most - 1) / most
	l.pieceBytes = (l.partBytes/pieces + pieceUnit) / pieceUnit * pieceUnit
	l.pieceBytes = min(l.pieceBytes, most)
	l.Pieces = int((l.partBytes + l.pieceBytes - 1) / l.pieceBytes)
	l.chooseLines()
}

// pieceUnit is the alignment of pieces. They are as aligned as the buffer.
const pieceUnit = 512

func (l *Launch) doesNotFit(bytes int64) error {
	return fmt.Errorf("%w for %v of %d bytes: they do not fit into exchange memory, and the buffers "+
		"are not in windows", errNoKernel, l.Operation, bytes)
}

// parts sets the parts of the buffers and the sets of ranks that exchange them.
func (l *Launch) parts() error {
	size := l.Count * int64(l.DataType.Size())
	all, root := uint32(1)<<l.Ranks-1, uint32(1)<<l.Root
	l.Pieces, l.partBytes, l.pieceBytes, l.sendTo, l.recvFrom, l.divisor = 1, size, size, all, all, 1
	switch l.Operation {
	case driver.AllReduce:
		return l.setReduction()
	case driver.ReduceScatter:
		l.sendStride = size
		return l.setReduction()
	case driver.Reduce:
		l.sendTo, l.recvFrom = root, 0
		if l.Rank == l.Root {
			l.sendTo, l.recvFrom = 0, all
		}
		return l.setReduction()
	case driver.AllGather:
		l.recvStride = size
	case driver.AllToAll:
		l.sendStride, l.recvStride = size, size
	case driver.Broadcast:
		l.recvFrom = root
		if l.Rank != l.Root {
			l.sendTo = 0
		}
	case driver.Barrier:
		l.partBytes, l.pieceBytes, l.sendTo, l.recvFrom = 0, 0, 0, 0
	default:
		return fmt.Errorf("%w for %v", errNoKernel, l.Operation)
	}
	return nil
}

// Thresholds of all-reduces. One-shot kernels send all data to every rank. Two-shot kernels send
// less but take longer; with 2 ranks they would send as much. On 4 H200 one-shot kernels are faster
// up to 192 KiB, and two-shot kernels are faster than bulk kernels for all sizes that fit into
// exchange memory. For 2 ranks, one-shot kernels are.
const (
	oneShotMost = 640 << 10 // most bytes that a rank sends in a one-shot kernel
	twoShotMost = 9 << 20   // most bytes that a rank sends in a two-shot kernel
	pairSum     = 7 << 20   // largest one-shot sum of 2 ranks
)

// largestPart is the part size of the other operations up to which line kernels are faster than
// bulk kernels: 2 MiB, on 2 and on 4 H200.
const largestPart = 2 << 20

// lineLimit returns the part size up to which line kernels are faster than bulk kernels.
func (l *Launch) lineLimit() int64 {
	switch {
	case l.Operation != driver.AllReduce:
		return largestPart
	case l.Ranks == 2:
		return pairSum
	default:
		ranks := int64(l.Ranks)
		return twoShotMost * ranks / (2 * (ranks - 1))
	}
}

// chooseLines chooses a line kernel, and reports whether the call fits into exchange memory.
func (l *Launch) chooseLines() bool {
	if l.Operation == driver.AllReduce && l.Ranks > 2 && l.pieceBytes > oneShotMost/int64(l.Ranks-1) {
		return l.chooseTwoShot()
	}
	if l.pieceBytes > oneShotLimit(l.Ranks) {
		return false
	}
	if l.any {
		l.Kernel = "wide_any"
		l.setGrid(chunks(l.pieceBytes, wideLines), noSmallBlocks, l.resident(l.Kernel))
		return true
	}
	family, all := "line", chunks(l.pieceBytes, lineLines)
	if l.setGrid(all, 2*l.Multiprocessors, l.resident(family)); all > l.warps() {
		family = l.choosePacks()
	}
	if l.Operation.Reduces() {
		l.Kernel = l.kernelName(family + "_sum")
	} else {
		l.Kernel = l.kernelName(family + "_copy")
	}
	return true
}

// choosePacks chooses the family for a call that has more chunks than a grid of line kernels has warps.
// For sums of 2 ranks, unrolled kernels need no loop for up to two chunks per warp.
func (l *Launch) choosePacks() (family string) {
	all, most := chunks(l.pieceBytes, wideLines), l.resident("wide")
	if l.setGrid(all, noSmallBlocks, most); all <= l.warps() || !l.Operation.Reduces() || l.Ranks != 2 {
		return "wide"
	}
	if l.setGrid((all+1)/2, most.blocks, most); all <= 2*l.warps() {
		return "unrolled"
	}
	return "wide"
}

// chooseTwoShot chooses the two-shot kernel, and reports whether the call fits.
func (l *Launch) chooseTwoShot() bool {
	if l.pieceBytes > twoShotLimit(l.Ranks) {
		return false
	}
	l.sendStride = (l.pieceBytes/int64(l.Ranks) + 7) / 8 * 8
	if int64(l.Ranks)*l.sendStride < l.pieceBytes {
		l.sendStride += 8
	}
	family := "line_two_shot"
	l.Kernel = l.kernelName(family)
	if l.any {
		l.Kernel, family = "line_two_shot_any", "line_two_shot_any"
	}
	l.setGrid(chunks(l.sendStride, lineLines), l.Multiprocessors, l.resident(family))
	return true
}

// oneShotLimit returns the largest part of a one-shot call, in bytes.
func oneShotLimit(ranks int) int64 {
	return halfBytes / int64(ranks) / wideLines / lineBytes * wideLines * lineDataBytes
}

// twoShotLimit returns the largest two-shot sum, in bytes. Each step uses half of the lines,
// divided among the ranks. With 2 ranks it equals the limit of one-shot calls.
func twoShotLimit(ranks int) int64 {
	each := halfBytes / 2 / lineLines / lineBytes / int64(ranks)
	return int64(ranks) * each * lineLines * lineDataBytes
}

// chunks returns the number of chunks that a part needs, for a given number of lines per chunk.
func chunks(bytes, lines int64) int64 {
	return (bytes + lines*lineDataBytes - 1) / (lines * lineDataBytes)
}

// gridSize holds the largest grid that is resident on every rank's GPU at once, as blocks and threads
// per block.
type gridSize struct{ blocks, threads int }

// resident returns the room of a family. Two blocks of some kernels (KERNEL_OF in
// src/collectives.cu) and one block of the others fit on a multiprocessor. Grids leave some space
// for a small call of another group.
func (l *Launch) resident(family string) gridSize {
	switch {
	case strings.HasSuffix(family, "_any"):
		return gridSize{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
	case family == "line_two_shot" && l.Ranks == 4:
		return gridSize{min(maxBlocks, l.Multiprocessors*9/5), 512}
	case l.Ranks == 2, l.Ranks == 4 && family == "line":
		return gridSize{min(maxBlocks, l.Multiprocessors*9/5), 640}
	default:
		return gridSize{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
	}
}

// noSmallBlocks makes grid use blocks of the largest size.
const noSmallBlocks = 0

// setGrid sets the grid for a number of chunks: one warp per chunk if possible, and one for the
// header. It first tries up to small blocks of 128 threads, which are faster than fewer large ones,
// then larger blocks, and finally more blocks of the largest size.
func (l *Launch) setGrid(chunks int64, small int, most gridSize) {
	small = min(small, most.blocks)
	for l.Threads = 128; l.Threads < most.threads; l.Threads = min(2*l.Threads, most.threads) {
		if l.Blocks = small; chunks <= l.warps() {
			break
		}
	}
	per := int64(l.Threads / warp)
	l.Blocks = int(min((chunks+per)/per, int64(most.blocks)))
}

// warps returns the number of warps of the grid that move data.
func (l *Launch) warps() int64 { return int64(l.Blocks*l.Threads/warp - 1) }

// chooseBulk chooses a bulk kernel.
func (l *Launch) chooseBulk() {
	switch allReduce := l.Operation == driver.AllReduce; {
	case l.any && allReduce:
		l.Kernel = "bulk_two_shot_any"
	case l.any:
		l.Kernel = "bulk_any"
	case allReduce:
		l.Kernel = l.kernelName("bulk_two_shot")
	case l.Operation.Reduces():
		l.Kernel = l.kernelName("bulk_sum")
	default:
		l.Kernel = l.kernelName("bulk_copy")
	}
	l.Bulk, l.Threads, l.Blocks = true, 512, min(64, l.Multiprocessors)
	if total := l.pieceBytes; total >= 8<<20 || max(l.sendStride, l.recvStride)*int64(l.Ranks) >= 8<<20 {
		l.Blocks = min(maxBulkBlocks, l.Multiprocessors)
	}
}
