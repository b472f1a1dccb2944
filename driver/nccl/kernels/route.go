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
	ids, weights, rowScales, own         uintptr
	scalesAt, weightsAt, idsAt, countsAt int64
	all                                  [MaxRanks]uintptr
}

const (
	routeThreads = 512
	// largeRouteBytes is the size of a rank's rows from which on calls take more blocks, as in
	// chooseBulk.
	largeRouteBytes = 8 << 20
)

// route implements Work for Dispatch and Combine.
type route struct{ l Launch }

func chooseRoute(l Launch) (Work, error) {
	switch {
	case l.Ranks < 2 || l.Ranks > MaxRanks:
		return nil, fmt.Errorf("%w for %d ranks", errNoKernel, l.Ranks)
	case !l.Symmetric && l.Operation == driver.Dispatch:
		return nil, fmt.Errorf("%w for %v into memory outside windows", errNoKernel, l.Operation)
	case !l.Symmetric:
		return nil, fmt.Errorf("%w for %v from memory outside windows", errNoKernel, l.Operation)
	}
	l.Bulk, l.Threads = true, routeThreads
	blocks := int64(maxBulkBlocks)
	r := &route{l}
	if !r.isLarge() {
		blocks = maxBulkBlocks / 2
	}
	r.l.Blocks = int(min(blocks, int64(l.Multiprocessors), l.Route.MaxTokens))
	family := "combine"
	if l.Operation == driver.Dispatch {
		family = "dispatch"
	}
	r.l.Kernel = l.kernelName(family)
	return r, nil
}

func (r *route) isLarge() bool { return r.l.Route.MaxTokens*r.rowBytes() >= largeRouteBytes }

func (r *route) rowBytes() int64 { return r.l.Route.Hidden * int64(r.l.DataType.Size()) }

// Remark implements Work.
func (r *route) Remark() string { return "" }

// Steps implements Work.
func (r *route) Steps(t *Transport) []Step {
	return []Step{{
		Kernel: r.l.Kernel, Blocks: r.l.Blocks, Threads: r.l.Threads, Params: r.params(t),
		digestOffset: unsafe.Offsetof(routeArguments{}.digest),
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
	copy(args.exchange[:], t.Exchange)
	if l.Operation == driver.Dispatch {
		args.own = l.Send
		copy(args.all[:], l.RecvWindow.(PeerLocator).Locate(l.Recv))
	} else {
		args.own = l.Recv
		copy(args.all[:], l.SendWindow.(PeerLocator).Locate(l.Send))
	}
	return cuda.ParamsOf(&args)
}
