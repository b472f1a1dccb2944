package kernels

import (
	"errors"
	"fmt"
	"strings"

	"symmem/driver"
)

// AfterAll is a kernel of one thread that takes a number and does nothing. Work behind it in the
// stream begins when everything ahead of it has ended, including what may overlap with the kernel
// before it.
const AfterAll = "after_all"

// MaxRanks is the largest number of ranks that the kernels support.
const MaxRanks = 8

// The sizes of exchange memory, as src/call.h has them.
const (
	// ExchangeBytes is the exchange memory of one rank in one group. It begins as zeros. It holds
	// sums of 7 MiB; NCCL's own communicator takes hundreds of MiB.
	ExchangeBytes = 32 << 20
	pageBytes     = 4096
	// halfBytes is the memory for the lines of a call.
	halfBytes = (ExchangeBytes - exchangeHeader) / 2 / pageBytes * pageBytes
	// exchangeHeader is sizeof(Exchange).
	exchangeHeader = 4096 + 4096 + maxBulkBlocks*MaxRanks*8
	// FaultOffset is where the fault word lies: 32 bits that are not 0 once a kernel of the rank
	// has failed.
	FaultOffset = 8

	maxBlocks     = 256
	maxBulkBlocks = 128
)

// A line of 128 bytes has 120 bytes of data. A warp moves a chunk of lines at once, 8 bytes a
// thread in line kernels and 16 in wide and unrolled ones.
const (
	lineBytes = 128
	lineData  = 120
	lineLines = 2
	wideLines = 4
	warp      = 32
)

// Overlaps reports whether the kernel may begin before those ahead of it in the stream have ended.
func (l *Launch) Overlaps() bool { return !l.Bulk && !l.any }

// Launch is a call and what matters of its group, and how to run it once Choose has worked that
// out.
type Launch struct {
	// All fields that Choose reads are equal on all ranks, except for Rank.
	*driver.Call
	// Rank is this rank of the group, Ranks their number.
	Rank, Ranks int
	// Formula is the order in which ranks are combined. RankOrder takes the same kernels as
	// AnyFormula.
	Formula driver.Formula
	// Symmetric is whether both buffers lie in windows, and all ranks can reach each other's.
	Symmetric bool
	// Multiprocessors is the smallest number of multiprocessors of any rank's GPU.
	Multiprocessors int

	// Kernel is the name of the kernel, Blocks and Threads its grid.
	Kernel          string
	Blocks, Threads int
	// Bulk is whether the kernel needs the buffers of all ranks.
	Bulk bool
	// Pieces is how many launches the call takes, one after the other: see Params.
	Pieces int
	// whole is the size of a part of the call, bytes that of each launch; the last has what is left.
	whole, bytes           int64
	sendStride, recvStride int64  // the distances of parts
	sendTo, recvFrom       uint32 // sets of ranks
	op, divisor            uint32
	// any is whether the call takes the kernels of any reduction.
	any bool
}

// errNone is wrapped by the errors of Choose: there is no kernel for the call.
var errNone = errors.New("no kernel of symmem's own")

// Choose finds the kernel of the call, or says why there is none. All ranks get the same answer,
// except for the sets of ranks. For AllReduceRMSNorm it is the first kernel, the all-reduce; Local
// is the second.
func (l *Launch) Choose() error {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return fmt.Errorf("%w for %d ranks", errNone, l.Ranks)
	}
	if call := l.Call; call.Operation == driver.AllReduceRMSNorm {
		sum := *call
		sum.Operation, l.Call = driver.AllReduce, &sum
		err := l.Choose()
		if l.Call = call; err == nil && !l.Bulk && l.whole > twoStepLimit(l.Ranks) {
			err = l.doesNotFit(l.whole)
		}
		return err
	}
	if err := l.parts(); err != nil {
		return err
	}
	overPeers := l.Symmetric && (l.Operation != driver.AllToAll || l.Send != l.Recv)
	if overPeers && l.bytes > l.largest() {
		l.bulk()
		return nil
	}
	if l.lines() {
		return nil
	}
	switch {
	case overPeers:
		l.bulk()
	case l.Operation.Reduces():
		l.cut()
	case !l.Symmetric:
		return l.doesNotFit(l.bytes)
	default:
		return fmt.Errorf("%w for %v in place of parts of %d bytes", errNone, l.Operation, l.bytes)
	}
	return nil
}

func (l *Launch) doesNotFit(bytes int64) error {
	return fmt.Errorf("%w for %v of %d bytes: they do not fit into exchange memory, and the buffers "+
		"do not lie in windows", errNone, l.Operation, bytes)
}

// parts works out who sends what to whom.
func (l *Launch) parts() error {
	size := l.Count * int64(l.DataType.Size())
	all, root := uint32(1)<<l.Ranks-1, uint32(1)<<l.Root
	l.Pieces, l.whole, l.bytes, l.sendTo, l.recvFrom, l.divisor = 1, size, size, all, all, 1
	switch l.Operation {
	case driver.AllReduce:
		return l.reduction()
	case driver.ReduceScatter:
		l.sendStride = size
		return l.reduction()
	case driver.Reduce:
		l.sendTo, l.recvFrom = root, 0
		if l.Rank == l.Root {
			l.sendTo, l.recvFrom = 0, all
		}
		return l.reduction()
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
		l.whole, l.bytes, l.sendTo, l.recvFrom = 0, 0, 0, 0
	default:
		return fmt.Errorf("%w for %v", errNone, l.Operation)
	}
	return nil
}

// One step sends every rank everything. Two steps send less and take longer; with 2 ranks they
// would send as much. On 4 H200 one step is faster up to 192 KiB, and two steps are faster than
// symmetric buffers for all that fits into exchange memory. So is the one step of 2 ranks.
const (
	oneStep  = 640 << 10 // bytes that a rank sends
	twoSteps = 9 << 20   // the same
	pairSum  = 7 << 20
)

// largestPart is, for the other operations, the size of a part up to which lines are faster than
// symmetric buffers: 2 MiB, on 2 and on 4 H200.
const largestPart = 2 << 20

// largest is the size of a part up to which lines are faster than symmetric buffers.
func (l *Launch) largest() int64 {
	switch {
	case l.Operation != driver.AllReduce:
		return largestPart
	case l.Ranks == 2:
		return pairSum
	default:
		ranks := int64(l.Ranks)
		return twoSteps * ranks / (2 * (ranks - 1))
	}
}

// lines chooses a line kernel, if the call fits into exchange memory.
func (l *Launch) lines() bool {
	if l.Operation == driver.AllReduce && l.Ranks > 2 && l.bytes > oneStep/int64(l.Ranks-1) {
		return l.inTwoSteps()
	}
	if l.bytes > oneStepLimit(l.Ranks) {
		return false
	}
	if l.any {
		l.Kernel = "wide_any"
		l.grid(chunks(l.bytes, wideLines), noSmall, l.resident(l.Kernel))
		return true
	}
	family, all := "line", chunks(l.bytes, lineLines)
	if l.grid(all, 2*l.Multiprocessors, l.resident(family)); all > l.warps() {
		family = l.packs()
	}
	if l.Operation.Reduces() {
		l.Kernel = l.kernel(family + "_sum")
	} else {
		l.Kernel = l.kernel(family + "_copy")
	}
	return true
}

// packs chooses the family of a call that has more chunks of words than the grid has warps. Sums of
// 2 ranks need no loop for up to two chunks per warp.
func (l *Launch) packs() (family string) {
	all, most := chunks(l.bytes, wideLines), l.resident("wide")
	if l.grid(all, noSmall, most); all <= l.warps() || !l.Operation.Reduces() || l.Ranks != 2 {
		return "wide"
	}
	if l.grid((all+1)/2, most.blocks, most); all <= 2*l.warps() {
		return "unrolled"
	}
	return "wide"
}

// inTwoSteps chooses the two-shot kernel, if the call fits.
func (l *Launch) inTwoSteps() bool {
	if l.bytes > twoStepLimit(l.Ranks) {
		return false
	}
	l.sendStride = (l.bytes/int64(l.Ranks) + 7) / 8 * 8
	if int64(l.Ranks)*l.sendStride < l.bytes {
		l.sendStride += 8
	}
	family := "line_two_shot"
	l.Kernel = l.kernel(family)
	if l.any {
		l.Kernel, family = "line_two_shot_any", "line_two_shot_any"
	}
	l.grid(chunks(l.sendStride, lineLines), l.Multiprocessors, l.resident(family))
	return true
}

// oneStepLimit returns the largest part of a one-shot call, in bytes.
func oneStepLimit(ranks int) int64 {
	return halfBytes / int64(ranks) / wideLines / lineBytes * wideLines * lineData
}

// twoStepLimit returns the largest two-shot sum, in bytes: each step uses half of the lines, in
// which every rank has a part. With 2 ranks it equals the limit of one-shot calls.
func twoStepLimit(ranks int) int64 {
	each := halfBytes / 2 / lineLines / lineBytes / int64(ranks)
	return int64(ranks) * each * lineLines * lineData
}

// chunks returns the number of chunks of this many lines that a part needs.
func chunks(bytes, lines int64) int64 { return (bytes + lines*lineData - 1) / (lines * lineData) }

// room is the largest grid of a kernel: a number of blocks and of threads in each. Every rank's GPU
// holds the whole grid at once.
type room struct{ blocks, threads int }

// resident returns the room of a family. Two blocks of some kernels fit on a multiprocessor
// (KERNEL_OF in src/collectives.cu), one of the others. Grids leave some space for a small call of
// another group.
func (l *Launch) resident(family string) room {
	switch {
	case strings.HasSuffix(family, "_any"):
		return room{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
	case family == "line_two_shot" && l.Ranks == 4:
		return room{min(maxBlocks, l.Multiprocessors*9/5), 512}
	case l.Ranks == 2, l.Ranks == 4 && family == "line":
		return room{min(maxBlocks, l.Multiprocessors*9/5), 640}
	default:
		return room{min(maxBlocks, (3*l.Multiprocessors+3)/4), 512}
	}
}

// noSmall asks for the largest blocks at once.
const noSmall = 0

// grid gives every chunk a warp as long as there are enough, and one warp to the words that ranks
// exchange. It has at most small blocks of few threads, which are faster than fewer large ones;
// beyond that, blocks grow, and then there are as many of the largest as needed.
func (l *Launch) grid(chunks int64, small int, most room) {
	small = min(small, most.blocks)
	for l.Threads = 128; l.Threads < most.threads; l.Threads = min(2*l.Threads, most.threads) {
		if l.Blocks = small; chunks <= l.warps() {
			break
		}
	}
	per := int64(l.Threads / warp)
	l.Blocks = int(min((chunks+per)/per, int64(most.blocks)))
}

// warps is how many warps of the grid have data.
func (l *Launch) warps() int64 { return int64(l.Blocks*l.Threads/warp - 1) }

// bulk chooses a bulk kernel.
func (l *Launch) bulk() {
	switch allReduce := l.Operation == driver.AllReduce; {
	case l.any && allReduce:
		l.Kernel = "bulk_two_shot_any"
	case l.any:
		l.Kernel = "bulk_any"
	case allReduce:
		l.Kernel = l.kernel("bulk_two_shot")
	case l.Operation.Reduces():
		l.Kernel = l.kernel("bulk_sum")
	default:
		l.Kernel = l.kernel("bulk_copy")
	}
	l.Bulk, l.Threads, l.Blocks = true, 512, min(64, l.Multiprocessors)
	if total := l.bytes; total >= 8<<20 || max(l.sendStride, l.recvStride)*int64(l.Ranks) >= 8<<20 {
		l.Blocks = min(maxBulkBlocks, l.Multiprocessors)
	}
}
