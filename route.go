package symmem

import (
	"context"

	"symmem/driver"
)

// A mixture of experts distributes its experts over the ranks. Suppose that rank 0 owns experts 0
// and 1, rank 1 owns experts 2 and 3, and a token of rank 0 needs experts 1 and 2. Dispatch sends
// the token's row of activations to both ranks, where the experts compute new rows. Combine sends
// the new rows back to rank 0 and adds them up.

// Routing contains the arguments of Dispatch and Combine that must be the same on all ranks.
type Routing struct {
	// Experts is the total number of experts, at most 512. Each rank owns a contiguous range. The
	// first Experts%ranks ranks own one expert more than the others.
	Experts int
	// TopK is the number of expert ids per token, at most 16.
	TopK int
	// MaxTokens limits the number of tokens of each rank. It is at most 32768.
	MaxTokens int64
	// Hidden is the number of elements in a row. The size of a row must be a multiple of 16 bytes.
	Hidden int64
	// Type is the element type of the rows that Dispatch sends, such as BFloat16, or Uint8 for float8.
	// Combine always sends BFloat16.
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

// FirstExpert returns the first expert of a rank in a group of the given size. The last expert is
// FirstExpert(ranks, rank+1) - 1, also for the last rank.
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
	// Dispatch sends them with the rows. Combine ignores them.
	Weights, RowScales Memory
	// Send has the shape [Tokens, Hidden] for Dispatch, and [ranks, MaxTokens, Hidden] for Combine.
	Send Memory
	// Recv has the layout of Routing.Layout for Dispatch, and the shape [Tokens, Hidden] for Combine.
	Recv Memory
}

// otherBuffers returns the buffers except Send and Recv. The fourth element is for norms.
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
	ctx context.Context, g *Group, operation driver.Operation, args RouteArgs, s *Stream,
	choice PathChoice, site uint32, wait bool,
) error {
	c := &collective{
		operation: operation, dataType: args.Type, send: args.Send, recv: args.Recv,
		count: args.MaxTokens * args.Hidden, choice: choice, site: site, wait: wait,
	}
	if operation == driver.Combine {
		c.dataType = BFloat16
	}

	slot := c.planSlot(args.IDs.Address())
	earlier := g.calls.plans[slot].Load() // may be nil or a different call
	c.routed = reuseRoute(earlier, &args)
	return g.run(ctx, s, c)
}

// reuseRoute returns the arguments of the earlier call if they equal args, so that repeated calls
// do not allocate. Otherwise, it copies args.
func reuseRoute(earlier *collective, args *RouteArgs) *RouteArgs {
	isRepeated := earlier != nil && earlier.routed != nil && *earlier.routed == *args
	if isRepeated {
		return earlier.routed
	}

	route := *args
	return &route
}
