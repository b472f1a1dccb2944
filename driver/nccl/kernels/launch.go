package kernels

import (
	"errors"
	"fmt"
	"strings"

	"symmem/driver"
)

// AfterAll is an empty kernel with one integer argument. Work queued after it starts only after all
// earlier work in the stream has completed.
const AfterAll = "after_all"

// MaxRanks is the largest supported number of ranks.
const MaxRanks = 8

// The layout of exchange memory, as in src/exchange.h.
const (
	// ExchangeBytes is the size of one rank's exchange memory in one group. It must be zeroed
	// before its first use.
	ExchangeBytes = 32 << 20
	pageBytes     = 4096
	halfBytes     = (ExchangeBytes - HeaderBytes) / 2 / pageBytes * pageBytes
	HeaderBytes   = 4096 + 4096 + maxBulkBlocks*MaxRanks*8 // sizeof(Exchange)
	FaultOffset   = 8                                      // of the 32-bit fault word

	maxBlocks     = 256
	maxBulkBlocks = 128
)

// A warp moves a chunk at once: lineLines lines in line kernels, wideLines in wide and unrolled
// ones.
const (
	lineBytes     = 128
	lineDataBytes = 120
	lineLines     = 2
	wideLines     = 4
	warp          = 32
)

// Launch describes a call and how to launch it. The caller sets the fields up to Multiprocessors,
// and Choose sets the others.
type Launch struct {
	// The fields that Choose reads must be the same on all ranks.
	*driver.Call
	Rank, Ranks     int
	Formula         driver.Formula // order in which the ranks' elements are combined
	Symmetric       bool           // every rank can access both buffers on all ranks
	Multiprocessors int            // of the smallest GPU of any rank

	Kernel                 string
	Blocks, Threads        int
	Bulk                   bool // the kernel accesses the buffers of other ranks
	Fused                  bool // one kernel runs a whole norm
	PieceCount             int
	partBytes, pieceBytes  int64  // the last piece of a part may be smaller
	sendStride, recvStride int64  // distances between the parts of the buffers
	sendRanks, recvRanks   uint32 // bit sets of ranks
	reduction, divisor     uint32
	isGeneric              bool
}

var errNoKernel = errors.New("symmem has no kernel")

// Choose chooses the kernel, or returns the reason why there is none. All ranks get the same
// results, except for sendRanks and recvRanks.
func (l *Launch) Choose() error {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	if l.Operation.HasNorm() {
		return chooseNorm(l)
	}

	if err := l.setParts(); err != nil {
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
		l.splitIntoPieces()
	case !l.Symmetric:
		return l.doesNotFitError(l.pieceBytes)
	default:
		return fmt.Errorf("%w for in-place %v with parts of %d bytes", errNoKernel, l.Operation,
			l.pieceBytes)
	}

	return nil
}

func (l *Launch) canOverlap() bool { return !l.Bulk && !l.isGeneric }

// Remark implements Work.
func (l *Launch) Remark() string {
	switch {
	case l.PieceCount > 1:
		return fmt.Sprintf("it goes through exchange memory in %d pieces", l.PieceCount)
	case l.Bulk && l.isMisaligned():
		return "input and output have different offsets modulo 16 bytes, so it moves elements one by " +
			"one, which is slow"
	}

	return ""
}

func (l *Launch) splitIntoPieces() {
	limit := oneShotLimit(l.Ranks)
	if l.Operation == driver.AllReduce {
		limit = twoShotLimit(l.Ranks)
	}

	limit = limit / pieceUnit * pieceUnit
	pieces := (l.partBytes + limit - 1) / limit
	l.pieceBytes = (l.partBytes/pieces + pieceUnit) / pieceUnit * pieceUnit
	l.pieceBytes = min(l.pieceBytes, limit)
	l.PieceCount = int((l.partBytes + l.pieceBytes - 1) / l.pieceBytes)
	l.chooseLines()
}

// pieceUnit divides the size of all pieces but the last, to keep the buffer's alignment.
const pieceUnit = 512

func (l *Launch) doesNotFitError(bytes int64) error {
	return fmt.Errorf("%w for %v of %d bytes: they do not fit into exchange memory, and the buffers "+
		"are not in windows", errNoKernel, l.Operation, bytes)
}

func (l *Launch) setParts() error {
	size := l.Count * int64(l.DataType.Size())
	all, root := uint32(1)<<l.Ranks-1, uint32(1)<<l.Root
	l.PieceCount, l.partBytes, l.pieceBytes, l.divisor = 1, size, size, 1
	l.sendRanks, l.recvRanks = all, all
	switch l.Operation {
	case driver.AllReduce:
		return l.setReduction()
	case driver.ReduceScatter:
		l.sendStride = size
		return l.setReduction()
	case driver.Reduce:
		l.sendRanks, l.recvRanks = root, 0
		if l.Rank == l.Root {
			l.sendRanks, l.recvRanks = 0, all
		}

		return l.setReduction()
	case driver.AllGather:
		l.recvStride = size
	case driver.AllToAll:
		l.sendStride, l.recvStride = size, size
	case driver.Broadcast:
		l.recvRanks = root
		if l.Rank != l.Root {
			l.sendRanks = 0
		}
	case driver.Barrier:
		l.partBytes, l.pieceBytes, l.sendRanks, l.recvRanks = 0, 0, 0, 0
	default:
		return fmt.Errorf("%w for %v", errNoKernel, l.Operation)
	}

	return nil
}

// One-shot kernels send all data to every rank. Two-shot kernels send less but have a higher
// latency. On four H200 GPUs, one-shot kernels are faster up to 192 KiB, and two-shot kernels are
// faster than bulk kernels for all sizes that fit.
const (
	maxOneShotBytes = 640 << 10 // sent by a rank in a one-shot kernel
	maxTwoShotBytes = 9 << 20   // sent by a rank in a two-shot kernel
	maxPairBytes    = 7 << 20   // largest one-shot sum with 2 ranks
)

// maxPartBytes is the limit for other operations, measured on two and four H200 GPUs.
const maxPartBytes = 2 << 20

// lineLimit returns the part size up to which line kernels are faster than bulk kernels.
func (l *Launch) lineLimit() int64 {
	switch {
	case l.Operation != driver.AllReduce:
		return maxPartBytes
	case l.Ranks == 2:
		return maxPairBytes
	default:
		ranks := int64(l.Ranks)
		return maxTwoShotBytes * ranks / (2 * (ranks - 1))
	}
}

// chooseLines returns false if the call does not fit into exchange memory.
func (l *Launch) chooseLines() bool {
	if l.Operation == driver.AllReduce && l.Ranks > 2 &&
		l.pieceBytes > maxOneShotBytes/int64(l.Ranks-1) {
		return l.chooseTwoShot()
	}

	if l.pieceBytes > oneShotLimit(l.Ranks) {
		return false
	}

	if l.isGeneric {
		l.Kernel = "wide_any"
		l.setGrid(countChunks(l.pieceBytes, wideLines), noSmallBlocks, l.resident(l.Kernel))
		return true
	}

	family, all := "line", countChunks(l.pieceBytes, lineLines)
	if l.setGrid(all, 2*l.Multiprocessors, l.resident(family)); all > l.warps() {
		family = l.chooseWide()
	}

	if l.Operation.Reduces() {
		l.Kernel = l.kernelName(family + "_sum")
	} else {
		l.Kernel = l.kernelName(family + "_copy")
	}

	return true
}

// chooseWide is for calls that need more warps than a line kernel has.
func (l *Launch) chooseWide() (family string) {
	all, limit := countChunks(l.pieceBytes, wideLines), l.resident("wide")
	l.setGrid(all, noSmallBlocks, limit)
	if all <= l.warps() || !l.Operation.Reduces() || l.Ranks != 2 {
		return "wide"
	}

	if l.setGrid((all+1)/2, limit.blocks, limit); all <= 2*l.warps() {
		return "unrolled"
	}

	return "wide"
}

// chooseTwoShot returns false if the call does not fit into exchange memory.
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
	if l.isGeneric {
		l.Kernel, family = "line_two_shot_any", "line_two_shot_any"
	}

	l.setGrid(countChunks(l.sendStride, lineLines), l.Multiprocessors, l.resident(family))
	return true
}

// oneShotLimit returns the size of the largest part of a one-shot call.
func oneShotLimit(ranks int) int64 {
	return halfBytes / int64(ranks) / wideLines / lineBytes * wideLines * lineDataBytes
}

// twoShotLimit returns the size of the largest two-shot sum, which uses half of the lines per step.
func twoShotLimit(ranks int) int64 {
	chunksPerRank := halfBytes / 2 / lineLines / lineBytes / int64(ranks)
	return int64(ranks) * chunksPerRank * lineLines * lineDataBytes
}

func countChunks(bytes, lines int64) int64 {
	return (bytes + lines*lineDataBytes - 1) / (lines * lineDataBytes)
}

type gridSize struct{ blocks, threads int }

// resident returns the largest grid whose blocks can all be resident at the same time, with space
// for a small call of another group (KERNEL_OF in src/collectives.cu).
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

const noSmallBlocks = 0

// setGrid uses one warp per chunk if possible, and one for the header. Small blocks are faster, so
// it tries the given number of blocks with 128 threads each first.
func (l *Launch) setGrid(chunks int64, blocks int, limit gridSize) {
	blocks = min(blocks, limit.blocks)
	for l.Threads = 128; l.Threads < limit.threads; l.Threads = min(2*l.Threads, limit.threads) {
		if l.Blocks = blocks; chunks <= l.warps() {
			break
		}
	}

	perBlock := int64(l.Threads / warp)
	l.Blocks = int(min((chunks+perBlock)/perBlock, int64(limit.blocks)))
}

// warps does not count the warp for the header.
func (l *Launch) warps() int64 { return int64(l.Blocks*l.Threads/warp - 1) }

// PackBytes is the number of bytes that a thread of a bulk kernel moves at a time, if input and
// output have the same address modulo PackBytes.
const PackBytes = 16

// isMisaligned reports whether a bulk kernel is slow on some rank.
func (l *Launch) isMisaligned() bool {
	hasParts := l.Operation == driver.AllGather || l.Operation == driver.ReduceScatter
	return (l.Send-l.Recv)%PackBytes != 0 || hasParts && l.partBytes%PackBytes != 0
}

func (l *Launch) chooseBulk() {
	switch allReduce := l.Operation == driver.AllReduce; {
	case l.isGeneric && allReduce:
		l.Kernel = "bulk_two_shot_any"
	case l.isGeneric:
		l.Kernel = "bulk_any"
	case allReduce:
		l.Kernel = l.kernelName("bulk_two_shot")
	case l.Operation.Reduces():
		l.Kernel = l.kernelName("bulk_sum")
	default:
		l.Kernel = l.kernelName("bulk_copy")
	}

	l.Bulk, l.Threads, l.Blocks = true, 512, min(64, l.Multiprocessors)
	bytes := max(l.pieceBytes, max(l.sendStride, l.recvStride)*int64(l.Ranks))
	if bytes >= 8<<20 {
		l.Blocks = min(maxBulkBlocks, l.Multiprocessors)
	}
}
