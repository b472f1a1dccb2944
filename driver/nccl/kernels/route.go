package kernels

import (
	"fmt"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// routeArguments has the layout of struct Route in src/route.h.
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
	routeThreads = 512
	// largeRouteBytes is the minimum size of a rank's rows for which calls use more blocks, as in
	// chooseBulk.
	largeRouteBytes = 8 << 20
	// maxLineTokens is the number of tokens for which the tables of line kernels have space.
	maxLineTokens = 512
)

// route implements Work for Dispatch and Combine.
type route struct{ l Launch }

func chooseRoute(l Launch) (Work, error) {
	if l.Ranks < 2 || l.Ranks > MaxRanks {
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	}
	r := &route{l}
	family := "combine"
	if l.Operation == driver.Dispatch {
		family = "dispatch"
	}
	fits, isFastest := r.checkLines()
	switch {
	case fits && (isFastest || !l.Symmetric):
		limit := r.resident()
		r.l.setGrid(l.Route.MaxTokens*r.chunksPerPlace(), limit.blocks, limit)
		r.l.Kernel = l.kernelName("route_line_" + family)
		return r, nil
	case !l.Symmetric && l.Operation == driver.Dispatch:
		return nil, fmt.Errorf("%w for %v into memory outside windows", errNoKernel, l.Operation)
	case !l.Symmetric:
		return nil, fmt.Errorf("%w for %v from memory outside windows", errNoKernel, l.Operation)
	}
	blocks := int64(maxBulkBlocks)
	if !r.isLarge() {
		blocks = maxBulkBlocks / 2
	}
	r.l.Bulk, r.l.Threads = true, routeThreads
	r.l.Blocks = int(min(blocks, int64(l.Multiprocessors), l.Route.MaxTokens))
	r.l.Kernel = l.kernelName(family)
	return r, nil
}

// resident returns the largest grid of a line kernel. It leaves space for a small call of another
// group: on each multiprocessor or, with more than 4 ranks, on every fourth one.
func (r *route) resident() gridSize {
	blocks := r.l.Multiprocessors
	if r.l.Ranks > 4 {
		blocks = (3*blocks + 3) / 4
	}
	return gridSize{min(maxBlocks, blocks), routeThreads}
}

// checkLines reports whether line kernels support the call, and whether they are the fastest.
func (r *route) checkLines() (fits, isFastest bool) {
	tokens, chunks := r.l.Route.MaxTokens, r.chunksPerPlace()
	regions := int64(r.l.Ranks) * tokens * chunks * wideLines * lineBytes
	fits = tokens <= maxLineTokens && MaxRanks*lineBytes+regions <= halfBytes
	return fits, tokens*chunks*wideLines*lineDataBytes <= maxPartBytes
}

// chunksPerPlace returns the number of chunks in which line kernels send the data of a token.
func (r *route) chunksPerPlace() int64 {
	chunks := countChunks(r.rowBytes(), wideLines)
	if call := r.l.Route; r.l.Operation == driver.Dispatch {
		chunks += countChunks(4*(call.Scales+2*int64(call.TopK)), wideLines)
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
	l, call := &r.l, r.l.Route
	layout := call.Layout(l.Ranks, r.rowBytes())
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
	args.chunks = uint32(r.chunksPerPlace())
	args.inverse = uint32((1<<31 + r.chunksPerPlace() - 1) / r.chunksPerPlace()) // 2^31 / chunks
	copy(args.exchange[:], t.Exchange)
	var window driver.Window
	if l.Operation == driver.Dispatch {
		args.own, args.all[l.Rank], window = l.Send, l.Recv, l.RecvWindow
	} else {
		args.own, args.all[l.Rank], window = l.Recv, l.Send, l.SendWindow
	}
	if l.Bulk {
		copy(args.all[:], window.(PeerLocator).Locate(args.all[l.Rank]))
	}
	return cuda.ParamsOf(&args)
}

// setOwners sets the arguments from which kernels compute an expert's owner without a division.
func (a *routeArguments) setOwners(call *driver.Route, l *Launch) {
	each, more := call.Experts/l.Ranks, call.Experts%l.Ranks
	// Kernels multiply by the inverse, which is scaled by 2^20.
	inverse := func(divisor int) uint32 { return uint32((1<<20 + divisor - 1) / max(divisor, 1)) }
	a.split, a.more = uint32(more*(each+1)), uint32(more)
	a.high, a.low = inverse(each+1), inverse(each)
	first := call.FirstExpert(l.Ranks, l.Rank)
	a.firstExpert = uint32(first)
	a.ownExperts = uint32(call.FirstExpert(l.Ranks, l.Rank+1) - first)
}
