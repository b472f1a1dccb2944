package kernels

import (
	"fmt"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// In a mixture of experts, a few of many experts process each token. Dispatch copies a token's row
// into tables on the ranks that own these experts. Combine adds up each token's rows from these
// tables.
//
// Line kernels, for small calls, pass rows through exchange memory. A line holds 120 bytes of data
// and an arrival flag. Bulk kernels access the tables of other ranks, and the tables must be in
// windows (memory that all ranks have registered).

// route implements Work for Dispatch and Combine.
type route struct{ launch Launch }

const (
	routeThreads    = 512     // maximum number of threads in a block
	maxLineTokens   = 512     // maximum Route.MaxTokens for line kernels
	largeRouteBytes = 8 << 20 // minimum size of all rows for the maximum number of bulk blocks
)

// chooseRoute chooses the kernel of a Dispatch or Combine, the same on all ranks.
func chooseRoute(l Launch) (Work, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	r := &route{launch: l}
	canUseBulk := l.Symmetric // the tables are in windows
	switch {
	case r.canUseLines() && (r.areLinesFaster() || !canUseBulk):
		r.useLines()
	case canUseBulk:
		r.useBulk()
	default:
		return nil, r.outsideWindowsError()
	}

	return r, nil
}

// canUseLines reports whether the call fits into one half of the exchange memory. The next call
// uses the other half.
func (r *route) canUseLines() bool {
	lines := int64(r.launch.Ranks) * r.maxChunksToPeer() * wideLines
	const headerLines = MaxRanks // for lists of the tokens that each rank sends
	bytes := (headerLines + lines) * lineBytes
	return r.launch.Route.MaxTokens <= maxLineTokens && bytes <= halfBytes
}

func (r *route) areLinesFaster() bool {
	dataToPeer := r.maxChunksToPeer() * wideLines * lineDataBytes
	return dataToPeer <= maxPartBytes
}

// maxChunksToPeer returns the maximum number of chunks (wideLines lines each) that a rank sends to
// another rank.
func (r *route) maxChunksToPeer() int64 { return r.launch.Route.MaxTokens * r.chunksPerToken() }

// chunksPerToken returns the number of chunks that a rank sends to another rank for a token.
func (r *route) chunksPerToken() int64 {
	chunks := countChunks(r.rowBytes(), wideLines)
	if r.launch.Operation == driver.Dispatch {
		const valueBytes = 4
		weightsAndIDs := 2 * int64(r.launch.Route.TopK)
		values := r.launch.Route.Scales + weightsAndIDs
		chunks += countChunks(valueBytes*values, wideLines) // values begin a new chunk
	}

	return chunks
}

func (r *route) rowBytes() int64 { return r.launch.Route.Hidden * int64(r.launch.DataType.Size()) }

// useLines chooses the line kernel, with a warp (32 threads) for each chunk if possible.
func (r *route) useLines() {
	blocks := min(maxBlocks, r.maxLineBlocks())
	r.launch.setGrid(r.maxChunksToPeer(), blocks, gridSize{blocks: blocks, threads: routeThreads})
	r.launch.Kernel = r.launch.kernelName("route_line_" + r.operationName())
}

// maxLineBlocks leaves space on the GPU for a small call of another group.
func (r *route) maxLineBlocks() int {
	multiprocessors := r.launch.Multiprocessors
	if r.launch.Ranks <= 4 { // a block and the small call fit on one multiprocessor
		return multiprocessors
	}

	reserved := multiprocessors / 4
	return multiprocessors - reserved
}

// useBulk chooses the bulk kernel, with at most one block for each token.
func (r *route) useBulk() {
	blocks := int64(maxBulkBlocks / 2)
	isLarge := r.launch.Route.MaxTokens*r.rowBytes() >= largeRouteBytes
	if isLarge {
		blocks = maxBulkBlocks
	}

	r.launch.Bulk = true
	r.launch.Threads = routeThreads
	r.launch.Blocks = int(min(blocks, int64(r.launch.Multiprocessors), r.launch.Route.MaxTokens))
	r.launch.Kernel = r.launch.kernelName(r.operationName())
}

func (r *route) operationName() string {
	if r.launch.Operation == driver.Dispatch {
		return "dispatch"
	}

	return "combine"
}

func (r *route) outsideWindowsError() error {
	direction := "from" // Combine reads the tables
	if r.launch.Operation == driver.Dispatch {
		direction = "into"
	}

	return fmt.Errorf("%w for %v %s memory outside windows", errNoKernel, r.launch.Operation,
		direction)
}

// Remark implements Work.
func (r *route) Remark() string { return "" }

// Steps implements Work.
func (r *route) Steps(t *Transport) []Step {
	l := &r.launch
	return []Step{{
		Kernel: l.Kernel, Blocks: l.Blocks, Threads: l.Threads, Params: r.params(t),
		CanOverlap: t.CanOverlap && !l.Bulk, digestOffset: unsafe.Offsetof(routeArguments{}.digest),
	}}
}

// routeArguments holds the arguments of the kernels, in the layout of struct Route in src/route.h.
type routeArguments struct {
	rank, ranks uint32
	tokens      uint32 // number of this rank's tokens
	topK        uint32 // number of experts of each token
	digest      uint64 // hash of the call, the same on all ranks
	timeout     time.Duration
	report      uintptr           // where kernels report failures
	exchange    [MaxRanks]uintptr // exchange memory of each rank

	experts   uint32 // number of experts on all ranks
	maxTokens uint32 // maximum number of tokens of a rank
	rowBytes  uint32
	scales    uint32 // number of scales of each row

	splitExpert, ranksWithMore, inverseIfMore, inverseOthers uint32 // see setOwners

	firstExpert uint32 // first of this rank's experts
	ownExperts  uint32 // number of this rank's experts

	chunksPerToken, inverseChunks uint32 // see setChunks

	// Arrays with entries for each token of this rank.
	ids, weights, rowScales, ownRows uintptr

	// Offsets in the output of a Dispatch, after the table of rows.
	scalesAt, weightsAt, idsAt, countsAt int64

	tables [MaxRanks]uintptr // each rank's table, or only this rank's for a line kernel
}

func (r *route) params(t *Transport) cuda.Params {
	l := &r.launch
	call := l.Route
	dispatched := call.Layout(l.Ranks, r.rowBytes())
	args := routeArguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), tokens: uint32(call.Tokens),
		topK: uint32(call.TopK), digest: l.Digest, timeout: t.Timeout, report: t.Report,
		experts: uint32(call.Experts), maxTokens: uint32(call.MaxTokens),
		rowBytes: uint32(r.rowBytes()), scales: uint32(call.Scales),
		ids: call.IDs, weights: call.Weights, rowScales: call.RowScales,
		scalesAt: dispatched.Scales, weightsAt: dispatched.Weights, idsAt: dispatched.IDs,
		countsAt: dispatched.Counts,
	}
	copy(args.exchange[:], t.Exchange)
	args.setOwners(call, l)
	args.setChunks(r.chunksPerToken())
	r.setAddresses(&args)
	return cuda.ParamsOf(&args)
}

// setAddresses sets ownRows and tables.
func (r *route) setAddresses(args *routeArguments) {
	l := &r.launch
	table, tableWindow := l.Recv, l.RecvWindow
	args.ownRows = l.Send
	if l.Operation == driver.Combine {
		table, tableWindow = l.Send, l.SendWindow
		args.ownRows = l.Recv
	}

	args.tables[l.Rank] = table
	if l.Bulk {
		window := tableWindow.(PeerLocator)
		copy(args.tables[:], window.Locate(table))
	}
}

// setChunks sets chunksPerToken, and inverseChunks to 2^31 / chunks, rounded up. Kernels multiply
// by the inverse instead of dividing.
func (a *routeArguments) setChunks(chunks int64) {
	const scale = 1 << 31
	a.chunksPerToken = uint32(chunks)
	a.inverseChunks = uint32((scale + chunks - 1) / chunks)
}

// setOwners sets the arguments from which kernels compute the owner of an expert. If the experts do
// not divide evenly, each of the first ranksWithMore ranks owns one expert more than the others,
// whose experts begin at splitExpert. Instead of dividing by the number of a rank's
// experts, kernels multiply by inverseIfMore or inverseOthers.
func (a *routeArguments) setOwners(call *driver.Route, l *Launch) {
	expertsPerRank := call.Experts / l.Ranks // without the extra expert
	ranksWithMore := call.Experts % l.Ranks
	a.splitExpert = uint32(ranksWithMore * (expertsPerRank + 1))
	a.ranksWithMore = uint32(ranksWithMore)
	a.inverseIfMore = scaledInverse(expertsPerRank + 1)
	a.inverseOthers = scaledInverse(expertsPerRank)
	firstExpert := call.FirstExpert(l.Ranks, l.Rank)
	end := call.FirstExpert(l.Ranks, l.Rank+1)
	a.firstExpert = uint32(firstExpert)
	a.ownExperts = uint32(end - firstExpert)
}

// scaledInverse returns 2^20 / divisor, rounded up. If the divisor is 0, the result is unused.
func scaledInverse(divisor int) uint32 {
	const scale = 1 << 20
	return uint32((scale + divisor - 1) / max(divisor, 1))
}
