package kernels

import (
	"fmt"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// This file is about mixtures of experts, models in which each token is processed by a few
// experts. Each expert belongs to a rank. A Dispatch sends the row of each token to the ranks that
// own the token's experts, and a Combine adds up the rows that these ranks have computed. A token
// has a place in the output of a Dispatch on each rank: the position of its row, scales, weights
// and ids.

// routeArguments has the layout of struct Route in src/route.h, which describes the fields.
type routeArguments struct {
	rank, ranks, tokens, topK            uint32
	digest                               uint64
	timeout                              time.Duration
	report                               uintptr
	exchange                             [MaxRanks]uintptr
	experts, maxTokens, rowBytes, scales uint32
	split, more, high, low               uint32
	firstExpert, ownExperts              uint32
	chunks, inverse                      uint32
	ids, weights, rowScales, own         uintptr
	scalesAt, weightsAt, idsAt, countsAt int64
	all                                  [MaxRanks]uintptr
}

const (
	routeThreads = 512 // in a block
	// largeRouteBytes is the minimum size of a rank's rows for which calls use more blocks, as in
	// chooseBulk.
	largeRouteBytes = 8 << 20
	// maxLineTokens is the number of tokens for which the tables of line kernels have space.
	maxLineTokens = 512
)

// route implements Work for Dispatch and Combine.
type route struct{ l Launch }

// chooseRoute chooses the kernel of a Dispatch or Combine. Line kernels are for small calls, and
// copy data through exchange memory, a block of memory per rank, in chunks of lines. Bulk kernels
// access the buffers of other ranks directly, which requires l.Symmetric.
func chooseRoute(l Launch) (Work, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}

	r := &route{l: l}
	family := "combine"
	if l.Operation == driver.Dispatch {
		family = "dispatch"
	}

	fitsLines, areLinesFastest := r.checkLines()
	if fitsLines && (areLinesFastest || !l.Symmetric) {
		limit := r.maxLineGrid()
		r.l.setGrid(l.Route.MaxTokens*r.chunksPerPlace(), limit.blocks, limit)
		r.l.Kernel = l.kernelName("route_line_" + family)
		return r, nil
	}

	if !l.Symmetric {
		// Other ranks access the output of a Dispatch, but the input of a Combine.
		direction := "from"
		if l.Operation == driver.Dispatch {
			direction = "into"
		}

		return nil, fmt.Errorf("%w for %v %s memory outside windows", errNoKernel, l.Operation,
			direction)
	}

	blocks := int64(maxBulkBlocks)
	if !r.isLarge() {
		blocks = maxBulkBlocks / 2
	}

	r.l.Bulk = true
	r.l.Threads = routeThreads
	r.l.Blocks = int(min(blocks, int64(l.Multiprocessors), l.Route.MaxTokens))
	r.l.Kernel = l.kernelName(family)
	return r, nil
}

// maxLineGrid returns the largest grid of a line kernel. It leaves space for a small call of
// another group: on each multiprocessor or, with more than 4 ranks, on every fourth one.
func (r *route) maxLineGrid() gridSize {
	blocks := r.l.Multiprocessors
	if r.l.Ranks > 4 {
		blocks = (3*blocks + 3) / 4 // three quarters, rounded up
	}

	return gridSize{blocks: min(maxBlocks, blocks), threads: routeThreads}
}

// checkLines reports whether line kernels support the call, and whether they are the fastest.
func (r *route) checkLines() (fits, isFastest bool) {
	tokens := r.l.Route.MaxTokens
	chunks := tokens * r.chunksPerPlace() // that a rank sends to another rank
	headers := int64(MaxRanks * lineBytes)
	regions := int64(r.l.Ranks) * chunks * wideLines * lineBytes
	fits = tokens <= maxLineTokens && headers+regions <= halfBytes
	isFastest = chunks*wideLines*lineDataBytes <= maxPartBytes
	return fits, isFastest
}

// chunksPerPlace returns the number of chunks in which line kernels send the data of a token.
func (r *route) chunksPerPlace() int64 {
	chunks := countChunks(r.rowBytes(), wideLines)
	if r.l.Operation == driver.Dispatch {
		const valueBytes = 4 // of a scale, an id or a weight
		weightsAndIDs := 2 * int64(r.l.Route.TopK)
		chunks += countChunks(valueBytes*(r.l.Route.Scales+weightsAndIDs), wideLines)
	}

	return chunks
}

func (r *route) isLarge() bool { return r.l.Route.MaxTokens*r.rowBytes() >= largeRouteBytes }

func (r *route) rowBytes() int64 { return r.l.Route.Hidden * int64(r.l.DataType.Size()) }

// Remark implements Work.
func (r *route) Remark() string { return "" }

// Steps implements Work.
func (r *route) Steps(t *Transport) []Step {
	return []Step{{
		Kernel: r.l.Kernel, Blocks: r.l.Blocks, Threads: r.l.Threads, Params: r.params(t),
		CanOverlap: t.CanOverlap && !r.l.Bulk, digestOffset: unsafe.Offsetof(routeArguments{}.digest),
	}}
}

func (r *route) params(t *Transport) cuda.Params {
	l := &r.l
	call := l.Route
	layout := call.Layout(l.Ranks, r.rowBytes()) // of the output of a Dispatch
	args := routeArguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), tokens: uint32(call.Tokens),
		topK: uint32(call.TopK), digest: l.Digest, timeout: t.Timeout, report: t.Report,
		experts: uint32(call.Experts), maxTokens: uint32(call.MaxTokens),
		rowBytes: uint32(r.rowBytes()), scales: uint32(call.Scales),
		ids: call.IDs, weights: call.Weights, rowScales: call.RowScales,
		scalesAt: layout.Scales, weightsAt: layout.Weights, idsAt: layout.IDs,
		countsAt: layout.Counts,
	}
	args.setOwners(call, l)
	chunks := r.chunksPerPlace()
	args.chunks = uint32(chunks)
	args.inverse = uint32((1<<31 + chunks - 1) / chunks) // 2^31 / chunks, rounded up
	copy(args.exchange[:], t.Exchange)
	// own has a row for each token of this rank. shared has rows of all ranks' tokens.
	shared, sharedWindow := l.Recv, l.RecvWindow
	args.own = l.Send
	if l.Operation == driver.Combine {
		shared, sharedWindow = l.Send, l.SendWindow
		args.own = l.Recv
	}

	args.all[l.Rank] = shared
	if l.Bulk {
		window := sharedWindow.(PeerLocator) // because l.Symmetric was set
		copy(args.all[:], window.Locate(shared))
	}

	return cuda.ParamsOf(&args)
}

// setOwners sets the arguments from which kernels compute the owner of an expert. The field more is
// the number of ranks that own one expert more than the others. They are the first ranks, and their
// experts end at split.
//
// Kernels do not divide by the number of experts per rank, but multiply by its inverse. high is the
// inverse for the first ranks and low for the others, scaled by 2^20 and rounded up.
func (a *routeArguments) setOwners(call *driver.Route, l *Launch) {
	each := call.Experts / l.Ranks
	more := call.Experts % l.Ranks
	inverse := func(divisor int) uint32 {
		return uint32((1<<20 + divisor - 1) / max(divisor, 1)) // each can be 0; low is then not used
	}
	a.split = uint32(more * (each + 1))
	a.more = uint32(more)
	a.high = inverse(each + 1)
	a.low = inverse(each)
	first := call.FirstExpert(l.Ranks, l.Rank)
	nextFirst := call.FirstExpert(l.Ranks, l.Rank+1)
	a.firstExpert = uint32(first)
	a.ownExperts = uint32(nextFirst - first)
}
