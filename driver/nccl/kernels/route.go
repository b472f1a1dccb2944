package kernels

import (
	"fmt"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Dispatch and Combine exchange rows in a mixture of experts, a model in which a few of many
// experts process each token. Dispatch copies a token's row into a table on each rank that owns one
// of its experts. Combine adds up the rows that these ranks computed.
//
// Line kernels, for small calls, pass rows through the backend's exchange memory in chunks of 4
// lines. A line has 120 bytes of data, and 8 bytes that signal its arrival. Bulk kernels access the
// tables of other ranks, which must be in windows (memory that all ranks have registered).

// route implements Work for Dispatch and Combine.
type route struct{ l Launch }

const (
	routeThreads    = 512     // maximum number of threads in a block
	maxLineTokens   = 512     // maximum Route.MaxTokens for line kernels
	largeRouteBytes = 8 << 20 // total size of rows from which bulk kernels use more blocks
)

// chooseRoute chooses the same kernel on all ranks for a Dispatch or Combine.
func chooseRoute(l Launch) (Work, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	r := &route{l: l}
	canUseBulk := l.Symmetric // the tables are in windows
	canUseLines, areLinesFaster := r.checkLines()
	preferLines := areLinesFaster || !canUseBulk
	switch {
	case canUseLines && preferLines:
		r.useLines()
	case canUseBulk:
		r.useBulk()
	default:
		return nil, r.outsideWindowsError()
	}

	return r, nil
}

// checkLines reports whether line kernels support the call, and whether they are faster than bulk
// kernels.
func (r *route) checkLines() (areSupported, areFaster bool) {
	tokens := r.l.Route.MaxTokens
	chunksToPeer := tokens * r.chunksPerToken()
	receivedBytes := int64(r.l.Ranks) * chunksToPeer * wideLines * lineBytes
	headerBytes := int64(MaxRanks * lineBytes) // from each rank, a line with the set of sent tokens
	// Calls use the two halves of the exchange memory in turn.
	areSupported = tokens <= maxLineTokens && headerBytes+receivedBytes <= halfBytes
	dataToPeer := chunksToPeer * wideLines * lineDataBytes
	areFaster = dataToPeer <= maxPartBytes
	return areSupported, areFaster
}

// chunksPerToken returns the number of chunks that a rank sends to another rank for a token.
func (r *route) chunksPerToken() int64 {
	chunks := countChunks(r.rowBytes(), wideLines)
	if r.l.Operation == driver.Dispatch {
		const valueBytes = 4 // of a scale, a weight or an id
		values := r.l.Route.Scales + 2*int64(r.l.Route.TopK)
		chunks += countChunks(valueBytes*values, wideLines) // not shared with the row
	}

	return chunks
}

func (r *route) rowBytes() int64 { return r.l.Route.Hidden * int64(r.l.DataType.Size()) }

// useLines chooses the line kernel, with a warp (32 threads) for each chunk if possible.
func (r *route) useLines() {
	chunks := r.l.Route.MaxTokens * r.chunksPerToken()
	blocks := min(maxBlocks, r.maxLineBlocks())
	r.l.setGrid(chunks, blocks, gridSize{blocks: blocks, threads: routeThreads})
	r.l.Kernel = r.l.kernelName("route_line_" + r.operationName())
}

// maxLineBlocks returns the number of blocks that leaves space for a small call of another group.
func (r *route) maxLineBlocks() int {
	multiprocessors := r.l.Multiprocessors
	if r.l.Ranks <= 4 {
		return multiprocessors // each can run a block and the small call together
	}

	reserved := multiprocessors / 4
	return multiprocessors - reserved
}

// useBulk chooses the bulk kernel, with at most one block for each token.
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

func (r *route) operationName() string {
	if r.l.Operation == driver.Dispatch {
		return "dispatch"
	}

	return "combine"
}

func (r *route) outsideWindowsError() error {
	direction := "from" // Combine reads the tables
	if r.l.Operation == driver.Dispatch {
		direction = "into"
	}

	return fmt.Errorf("%w for %v %s memory outside windows", errNoKernel, r.l.Operation, direction)
}

// Remark implements Work.
func (r *route) Remark() string { return "" }

// Steps implements Work with a single launch.
func (r *route) Steps(t *Transport) []Step {
	return []Step{{
		Kernel: r.l.Kernel, Blocks: r.l.Blocks, Threads: r.l.Threads, Params: r.params(t),
		CanOverlap: t.CanOverlap && !r.l.Bulk, digestOffset: unsafe.Offsetof(routeArguments{}.digest),
	}}
}

// routeArguments has the layout of struct Route in src/route.h, the arguments of the kernels.
type routeArguments struct {
	rank, ranks, tokens, topK            uint32 // tokens are those of this rank
	digest                               uint64 // hash of the call, the same on all ranks
	timeout                              time.Duration
	report                               uintptr           // where kernels report failures
	exchange                             [MaxRanks]uintptr // exchange memory of each rank
	experts, maxTokens, rowBytes, scales uint32
	split, more, high, low               uint32 // see setOwners
	firstExpert, ownExperts              uint32 // this rank's experts: the first, and their number
	chunks, inverse                      uint32 // see setChunks
	ids, weights, rowScales              uintptr
	own                                  uintptr // rows of this rank's tokens
	// Offsets in the output of a Dispatch, whose table of rows is at offset 0.
	scalesAt, weightsAt, idsAt, countsAt int64
	all                                  [MaxRanks]uintptr // table of each rank
}

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

// setAddresses sets own and all. Line kernels need only this rank's table.
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
		window := tableWindow.(PeerLocator)
		copy(args.all[:], window.Locate(table))
	}
}

// setChunks sets chunks and its inverse, 2^31 / chunks rounded up, by which kernels multiply
// instead of dividing by chunks.
func (a *routeArguments) setChunks(chunks int64) {
	a.chunks = uint32(chunks)
	a.inverse = uint32((1<<31 + chunks - 1) / chunks)
}

// setOwners sets the arguments from which kernels compute the owner of an expert. If the experts do
// not divide evenly, each of the first ranks owns one expert more than the others. For 5 experts on
// 2 ranks, more (the number of such ranks) is 1 and split (the end of their experts) is 3. Kernels
// multiply by high and low, scaled inverses of 3 and 2, instead of dividing.
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

// scaledInverse returns 2^20 / divisor, rounded up. If the divisor is 0, kernels do not use the
// result, because all experts come before split.
func scaledInverse(divisor int) uint32 {
	return uint32((1<<20 + divisor - 1) / max(divisor, 1))
}
