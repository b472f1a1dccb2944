package symmem

import (
	"context"

	"symmem/driver"
)

// A mixture of experts distributes its experts over the ranks. Suppose that rank 0 owns experts 0
// and 1, rank 1 owns experts 2 and 3, and a token of rank 0 needs experts 1 and 2. Dispatch sends
// the token's row of activations to ranks 0 and 1, and each computes a new row. Combine sends the
// new rows back to rank 0 and adds them up.

// Routing describes an exchange of rows by Dispatch and Combine. All ranks must pass the same
// Routing.
type Routing struct {
	// Experts is the number of experts of all ranks, at most 512. Each rank owns a contiguous range
	// of Experts/ranks experts. The remainder goes to the first ranks, one expert each.
	Experts int
	// TopK is the number of expert ids per token, at most 16.
	TopK int
	// MaxTokens is the maximum number of tokens of a rank, at most 32768.
	MaxTokens int64
	// Hidden is the number of elements of a row. The size of a row must be a multiple of 16 bytes.
	Hidden int64
	// Type is the element type that Dispatch sends, such as BFloat16, or Uint8 for float8. Combine
	// always sends BFloat16.
	Type DataType
	// Scales is the number of float32 scales that Dispatch copies with each row. It may be 0.
	Scales int64
}

// DispatchLayout describes the memory that Dispatch writes; see [driver.RouteLayout].
type DispatchLayout = driver.RouteLayout

// Layout returns the layout of the memory that Dispatch writes in a group of the given size.
func (r Routing) Layout(ranks int) DispatchLayout {
	route := driver.Route{MaxTokens: r.MaxTokens, TopK: r.TopK, Scales: r.Scales}
	return route.Layout(ranks, r.Hidden*int64(r.Type.Size()))
}

// FirstExpert returns the first expert of a rank in a group of the given size. The rank owns the
// experts from there up to the first expert of rank+1.
func (r Routing) FirstExpert(ranks, rank int) int {
	route := driver.Route{Experts: r.Experts}
	return route.FirstExpert(ranks, rank)
}

// RouteArgs contains the arguments of Dispatch and Combine. All tensors must be contiguous. Send
// and Recv must be aligned to 16 bytes, and the other tensors to 4 bytes.
type RouteArgs struct {
	Routing
	// Tokens is the number of this rank's tokens. It may be 0.
	Tokens int64
	// IDs is an int32 tensor of the shape [Tokens, TopK] with the expert ids of each token. An id of
	// -1 means no expert.
	IDs Memory
	// Weights and RowScales are float32 tensors of the shapes [Tokens, TopK] and [Tokens, Scales].
	// Combine ignores both.
	Weights, RowScales Memory
	// Send has the shape [Tokens, Hidden] for Dispatch, and [ranks, MaxTokens, Hidden] for Combine.
	Send Memory
	// Recv has the layout of Routing.Layout for Dispatch, and the shape [Tokens, Hidden] for Combine.
	Recv Memory
}

// otherBuffers returns the buffers other than Send and Recv. The array has the length of
// NormArgs.otherBuffers, so its last element is unused.
func (a *RouteArgs) otherBuffers() [4]Memory { return [4]Memory{a.IDs, a.Weights, a.RowScales} }

func (a *RouteArgs) driverRoute() *driver.Route {
	return &driver.Route{
		Tokens: a.Tokens, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK,
		Experts: a.Experts, IDs: a.IDs.Address(), Weights: a.Weights.Address(),
		RowScales: a.RowScales.Address(),
	}
}

// runRoute queues a Dispatch or a Combine and, if wait is true, waits for the result.
func runRoute(
	ctx context.Context, g *Group, o driver.Operation, a RouteArgs, s *Stream, choice PathChoice,
	site uint32, wait bool,
) error {
	c := &collective{
		operation: o, dataType: a.Type, send: a.Send, recv: a.Recv, count: a.MaxTokens * a.Hidden,
		choice: choice, site: site, wait: wait,
	}
	if o == driver.Combine {
		c.dataType = BFloat16
	}

	slot := c.planSlot(a.IDs.Address())
	cached := g.calls.plans[slot].Load() // an earlier call, possibly with the same arguments, or nil
	c.routed = reuseRoute(cached, &a)
	return g.run(ctx, s, c)
}

// reuseRoute returns the arguments of the cached call if they equal args, so that repeated calls do
// not allocate, and otherwise a copy of args.
func reuseRoute(cached *collective, args *RouteArgs) *RouteArgs {
	isRepeated := cached != nil && cached.routed != nil && *cached.routed == *args
	if isRepeated {
		return cached.routed
	}

	route := *args
	return &route
}

// locateRoute stores in the call the window (the registered memory) of the only buffer that other
// ranks access: the receive buffer of a Dispatch or the send buffer of a Combine.
func locateRoute(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) locations {
	isCombine := call.Operation == driver.Combine
	if isCombine {
		entry, isInWindow := table.findWindow(call.Send, sendBytes)
		if !isInWindow {
			return locations{where: "the send buffer is in no window of the group"}
		}

		call.SendWindow = entry.window
		return locations{send: entry, where: "the send buffer lies in a window of the group"}
	}

	entry, isInWindow := table.findWindow(call.Recv, recvBytes)
	if !isInWindow {
		return locations{where: "the receive buffer is in no window of the group"}
	}

	call.RecvWindow = entry.window
	return locations{recv: entry, where: "the receive buffer lies in a window of the group"}
}

// windowBuffers returns the send and receive buffers of a collective. A buffer that other ranks do
// not access needs no registration and is zero.
func (c *collective) windowBuffers() [2]Memory {
	switch c.operation {
	case driver.Dispatch:
		return [2]Memory{{}, c.recv}
	case driver.Combine, driver.ReduceScatterRMSNorm:
		return [2]Memory{c.send, {}}
	default:
		return [2]Memory{c.send, c.recv}
	}
}
