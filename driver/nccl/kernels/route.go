package kernels

import (
	"fmt"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Dispatch and Combine exchange rows in a mixture of experts: a model in which a few of many
// experts process each token. For example, rank 0 owns expert 0, and rank 1 owns expert 1. A token
// of rank 0 has a row of numbers, and the ids 0 and 1 of its experts. Dispatch copies the row to
// both ranks. From its copy, each rank computes a new row. Combine adds up both new rows on rank 0.
//
// Each rank has a table of rows, with an entry for each token of any rank. Dispatch writes copies
// to the tables. Combine reads new rows from them. There are two kinds of kernels:
//
//   - Line kernels are for small calls. They pass rows through exchange memory, which the backend
//     has allocated on each rank, in lines of 128 bytes: 120 bytes of data, and a flag that shows
//     the receiver that the line has arrived. A chunk has 4 lines.
//   - Bulk kernels access the tables of other ranks. This is possible if the tables are in windows:
//     memory that all ranks have registered.

// route implements Work for Dispatch and Combine.
type route struct{ l Launch }

const (
	routeThreads = 512 // the largest number of threads in a block
	// maxLineTokens is the largest Route.MaxTokens for which line kernels have space.
	maxLineTokens = 512
	// largeRouteBytes is the size of the rows of MaxTokens tokens from which bulk kernels use more
	// blocks.
	largeRouteBytes = 8 << 20
)

// chooseRoute chooses the kernel of a Dispatch or Combine. All ranks choose the same one.
func chooseRoute(l Launch) (Work, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	r := &route{l: l}
	areTablesInWindows := l.Symmetric
	fitsLines, areLinesFastest := r.checkLines()
	switch {
	case fitsLines && (areLinesFastest || !areTablesInWindows):
		r.useLines()
	case areTablesInWindows:
		r.useBulk()
	default:
		return nil, r.outsideWindowsError()
	}

	return r, nil
}

// checkLines reports whether line kernels support the call, and whether they are the fastest.
func (r *route) checkLines() (fits, areFastest bool) {
	tokens := r.l.Route.MaxTokens
	chunks := tokens * r.chunksPerToken() // that a rank can send to another rank
	chunkBytes := int64(wideLines * lineBytes)
	bytes := int64(r.l.Ranks) * chunks * chunkBytes // that a rank can receive from all ranks
	headerBytes := int64(MaxRanks * lineBytes)      // a line from each rank: the set of sent tokens
	// A call uses one half of the exchange memory, and the next call uses the other half.
	fits = tokens <= maxLineTokens && headerBytes+bytes <= halfBytes
	dataBytes := chunks * wideLines * lineDataBytes
	areFastest = dataBytes <= maxPartBytes // a limit that was measured
	return fits, areFastest
}

// chunksPerToken returns the number of chunks that a rank sends to another rank for a token. A
// Dispatch sends the row in some chunks, and the scales, weights and ids in others.
func (r *route) chunksPerToken() int64 {
	chunks := countChunks(r.rowBytes(), wideLines)
	if r.l.Operation == driver.Dispatch {
		const valueBytes = 4 // of a scale, a weight or an id
		values := r.l.Route.Scales + 2*int64(r.l.Route.TopK)
		chunks += countChunks(valueBytes*values, wideLines)
	}

	return chunks
}

// rowBytes returns the size of a row.
func (r *route) rowBytes() int64 { return r.l.Route.Hidden * int64(r.l.DataType.Size()) }

// useLines chooses the line kernel, with a warp (32 threads) for each chunk if possible.
func (r *route) useLines() {
	chunks := r.l.Route.MaxTokens * r.chunksPerToken()
	blocks := min(maxBlocks, r.maxLineBlocks())
	r.l.setGrid(chunks, blocks, gridSize{blocks: blocks, threads: routeThreads})
	r.l.Kernel = r.l.kernelName("route_line_" + r.operationName())
}

// maxLineBlocks returns the number of blocks that leaves space for a small call of another group.
// Up to 4 ranks, one block and the small call fit on a multiprocessor together. With more ranks,
// every fourth multiprocessor stays free.
func (r *route) maxLineBlocks() int {
	multiprocessors := r.l.Multiprocessors
	if r.l.Ranks <= 4 {
		return multiprocessors
	}

	return (3*multiprocessors + 3) / 4 // three quarters, rounded up
}

// useBulk chooses the bulk kernel, with at most one block for each of MaxTokens tokens.
func (r *route) useBulk() {
	blocks := int64(maxBulkBlocks)
	isLarge := r.l.Route.MaxTokens*r.rowBytes() >= largeRouteBytes
	if !isLarge {
		blocks = maxBulkBlocks / 2
	}

	r.l.Bulk = true
	r.l.Threads = routeThreads
	r.l.Blocks = int(min(blocks, int64(r.l.Multiprocessors), r.l.Route.MaxTokens))
	r.l.Kernel = r.l.kernelName(r.operationName())
}

// operationName returns the operation as in the names of kernels.
func (r *route) operationName() string {
	if r.l.Operation == driver.Dispatch {
		return "dispatch"
	}

	return "combine"
}

// outsideWindowsError returns the error for a call that needs windows but has none.
func (r *route) outsideWindowsError() error {
	direction := "from" // Combine reads the tables
	if r.l.Operation == driver.Dispatch {
		direction = "into"
	}

	return fmt.Errorf("%w for %v %s memory outside windows", errNoKernel, r.l.Operation, direction)
}

// Remark implements Work.
func (r *route) Remark() string { return "" }

// Steps implements Work. A call is one launch of its kernel.
func (r *route) Steps(t *Transport) []Step {
	return []Step{{
		Kernel: r.l.Kernel, Blocks: r.l.Blocks, Threads: r.l.Threads, Params: r.params(t),
		CanOverlap: t.CanOverlap && !r.l.Bulk, digestOffset: unsafe.Offsetof(routeArguments{}.digest),
	}}
}

// routeArguments holds the arguments of the kernels. It has the layout of struct Route in
// src/route.h.
type routeArguments struct {
	rank, ranks, tokens, topK            uint32 // tokens is the number of this rank's tokens
	digest                               uint64 // hash of the call, the same on all ranks
	timeout                              time.Duration
	report                               uintptr           // where kernels report failures
	exchange                             [MaxRanks]uintptr // the exchange memory of each rank
	experts, maxTokens, rowBytes, scales uint32
	split, more, high, low               uint32 // see setOwners
	firstExpert, ownExperts              uint32 // the first of this rank's experts, and their number
	chunks, inverse                      uint32 // see setChunks
	// These are addresses. own has the rows of this rank's tokens: the input of a Dispatch, or the
	// output of a Combine.
	ids, weights, rowScales, own uintptr
	// These are the offsets in the output of a Dispatch. The table of rows is at offset 0.
	scalesAt, weightsAt, idsAt, countsAt int64
	all                                  [MaxRanks]uintptr // the table of each rank
}

// params returns the arguments of the kernel.
func (r *route) params(t *Transport) cuda.Params {
	l := &r.l
	call := l.Route
	output := call.Layout(l.Ranks, r.rowBytes()) // of a Dispatch
	args := routeArguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), tokens: uint32(call.Tokens),
		topK: uint32(call.TopK), digest: l.Digest, timeout: t.Timeout, report: t.Report,
		experts: uint32(call.Experts), maxTokens: uint32(call.MaxTokens),
		rowBytes: uint32(r.rowBytes()), scales: uint32(call.Scales),
		ids: call.IDs, weights: call.Weights, rowScales: call.RowScales,
		scalesAt: output.Scales, weightsAt: output.Weights, idsAt: output.IDs,
		countsAt: output.Counts,
	}
	copy(args.exchange[:], t.Exchange)
	args.setOwners(call, l)
	args.setChunks(r.chunksPerToken())
	r.setAddresses(&args)
	return cuda.ParamsOf(&args)
}

// setAddresses sets own and all. Bulk kernels get the tables of all ranks, and line kernels only
// that of this rank.
func (r *route) setAddresses(args *routeArguments) {
	l := &r.l
	table, tableWindow := l.Recv, l.RecvWindow
	args.own = l.Send
	if l.Operation == driver.Combine {
		table, tableWindow = l.Send, l.SendWindow
		args.own = l.Recv
	}

	args.all[l.Rank] = table
	if l.Bulk {
		window := tableWindow.(PeerLocator) // because the tables are in windows
		copy(args.all[:], window.Locate(table))
	}
}

// setChunks sets chunks, and its inverse: 2^31 / chunks, rounded up. Kernels multiply by the
// inverse instead of dividing by chunks.
func (a *routeArguments) setChunks(chunks int64) {
	a.chunks = uint32(chunks)
	a.inverse = uint32((1<<31 + chunks - 1) / chunks)
}

// setOwners sets the arguments from which kernels compute the owner of an expert.
//
// For example, of 5 experts on 2 ranks, rank 0 owns the experts 0 to 2, and rank 1 owns 3 and 4.
// Then more, the number of ranks that own one expert more than the others, is 1. split is 3, the
// end of the experts of these ranks. high is the inverse of 3, and low is the inverse of 2. Kernels
// multiply by them instead of dividing by the number of experts of a rank.
func (a *routeArguments) setOwners(call *driver.Route, l *Launch) {
	fewest := call.Experts / l.Ranks // experts of a rank
	most := fewest + 1
	ranksWithMost := call.Experts % l.Ranks
	a.split = uint32(ranksWithMost * most)
	a.more = uint32(ranksWithMost)
	a.high = scaledInverse(most)
	a.low = scaledInverse(fewest)
	firstExpert := call.FirstExpert(l.Ranks, l.Rank)
	end := call.FirstExpert(l.Ranks, l.Rank+1)
	a.firstExpert = uint32(firstExpert)
	a.ownExperts = uint32(end - firstExpert)
}

// scaledInverse returns 2^20 / divisor, rounded up. The divisor can be 0 for low. Kernels then do
// not use the result, because all experts are before split.
func scaledInverse(divisor int) uint32 {
	return uint32((1<<20 + divisor - 1) / max(divisor, 1))
}
