package symmem

import (
	"context"

	"symmem/driver"
)

// In a mixture of experts, each token is processed by a few of many experts, which belong to
// different ranks. Suppose that rank 0 owns the experts 0 and 1, rank 1 owns the experts 2 and 3,
// and a token of rank 0 needs the experts 1 and 2. Dispatch sends the token's row of numbers to
// rank 0 and rank 1. Each of them computes a new row. Combine sends both new rows to rank 0, and
// adds them up there.

// Routing describes an exchange of rows by Dispatch and Combine. It must be the same on all ranks.
type Routing struct {
	// Experts is the number of experts of all ranks, at most 512. Each rank owns a contiguous range
	// of experts. If the experts cannot be divided equally, the first ranks own one more than the
	// others.
	Experts int
	// TopK is the number of expert ids per token, at most 16.
	TopK int
	// MaxTokens is the maximum number of tokens of a rank, at most 32768.
	MaxTokens int64
	// Hidden is the number of elements of a row. The size of a row must be a multiple of 16 bytes.
	Hidden int64
	// Type is the type of the rows that Dispatch sends, such as BFloat16, or Uint8 for float8. The
	// rows of Combine are always BFloat16.
	Type DataType
	// Scales is the number of float32 scales of each row, which Dispatch copies with the row. It may
	// be 0.
	Scales int64
}

// DispatchLayout describes the memory that Dispatch writes; see [driver.RouteLayout].
type DispatchLayout = driver.RouteLayout

// Layout returns the layout of the memory that Dispatch writes in a group of the given size. The
// layout's Bytes is the size of the memory.
func (r Routing) Layout(ranks int) DispatchLayout {
	route := driver.Route{MaxTokens: r.MaxTokens, TopK: r.TopK, Scales: r.Scales}
	return route.Layout(ranks, r.Hidden*int64(r.Type.Size()))
}

// FirstExpert returns the first expert of a rank in a group with the given number of ranks. The
// rank's experts end before the first expert of the next rank.
func (r Routing) FirstExpert(ranks, rank int) int {
	route := driver.Route{Experts: r.Experts}
	return route.FirstExpert(ranks, rank)
}

// RouteArgs contains the arguments of Dispatch and Combine. The tensors in the Memory fields must
// be contiguous. Send and Recv must be aligned to 16 bytes, and the others to 4 bytes.
type RouteArgs struct {
	Routing
	// Tokens is the number of this rank's tokens. It may be 0.
	Tokens int64
	// IDs contains the ids of each token's experts. It has the shape [Tokens, TopK] and the type
	// int32. An id of -1 means no expert.
	IDs Memory
	// Weights and RowScales have the shapes [Tokens, TopK] and [Tokens, Scales] and the type float32.
	// Combine does not use them.
	Weights, RowScales Memory
	// Send has the shape [Tokens, Hidden] for Dispatch, and [ranks, MaxTokens, Hidden] for Combine.
	Send Memory
	// Recv has the layout of Routing.Layout for Dispatch, and the shape [Tokens, Hidden] for Combine.
	Recv Memory
}

// otherBuffers returns the buffers other than Send and Recv. The last element is always zero.
func (a *RouteArgs) otherBuffers() [4]Memory { return [4]Memory{a.IDs, a.Weights, a.RowScales} }

// driverRoute converts the arguments for the backend.
func (a *RouteArgs) driverRoute() *driver.Route {
	return &driver.Route{
		Tokens: a.Tokens, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK,
		Experts: a.Experts, IDs: a.IDs.Address(), Weights: a.Weights.Address(),
		RowScales: a.RowScales.Address(),
	}
}

// runRoute queues a Dispatch or a Combine. If wait is true, it also waits for the result.
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

	// The group keeps prepared calls. If there is one with equal arguments, it is in this slot.
	slot := c.planSlot(a.IDs.Address())
	kept := g.calls.plans[slot].Load() // may be nil
	c.routed = reuseRoute(kept, &a)
	return g.run(ctx, s, c)
}

// reuseRoute returns a copy of args on the heap. If the kept call has equal arguments, it returns
// those instead, so that repeated calls do not allocate.
func reuseRoute(kept *collective, args *RouteArgs) *RouteArgs {
	hasEqual := kept != nil && kept.routed != nil && *kept.routed == *args
	if hasEqual {
		return kept.routed
	}

	route := *args
	return &route
}

// locateRoute finds the window of the buffer that peers (other ranks) access, and stores it in the
// call. A window is memory that the ranks have registered together. Peers access the receive buffer
// of a Dispatch, and the send buffer of a Combine.
func locateRoute(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) (found locations) {
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

// windowBuffers returns the send buffer and the receive buffer of any collective, for the
// registration of their memory. A buffer that peers do not access is replaced by the zero Memory.
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
