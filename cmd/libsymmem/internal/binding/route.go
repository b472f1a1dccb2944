package binding

import (
	"fmt"

	"symmem"
	"symmem/driver"
)

// RouteArguments holds the arguments of symmem_dispatch and symmem_combine as C passes them.
// symmem_dispatch copies each token's row to the ranks that own the token's experts. symmem_combine
// adds up the results of these experts on the token's rank.
type RouteArguments struct {
	Experts   int   // number of experts on all ranks
	TopK      int   // number of experts for each token
	Tokens    int64 // number of tokens on this rank
	MaxTokens int64 // maximum of Tokens on any rank
	Hidden    int64 // number of elements in a row
	Scales    int64 // number of float32 scales for a row
	Type      int   // enumerator of the element type

	// Addresses of buffers, or 0 for unused ones.
	IDs       uintptr // TopK ids of experts for each token
	Weights   uintptr // TopK weights for each token
	RowScales uintptr // the scales of each row
	Send      uintptr // dispatch: a row for each token; combine: the experts' results
	Recv      uintptr // dispatch: the received rows; combine: a sum for each token
}

// Layout returns the layout of the memory that symmem_dispatch writes on each rank.
func (a *RouteArguments) Layout(ranks int) (symmem.DispatchLayout, error) {
	if err := checkLayoutRanks(ranks); err != nil {
		return symmem.DispatchLayout{}, err
	}

	t, err := parseEnum("element type", types, a.Type)
	if err != nil {
		return symmem.DispatchLayout{}, err
	}

	call, err := a.toCall(symmem.OpDispatch, t, ranks)
	if err != nil {
		return symmem.DispatchLayout{}, err
	}

	rowBytes := a.Hidden * int64(t.Size())
	return call.Route.Layout(ranks, rowBytes), nil
}

func checkLayoutRanks(ranks int) error {
	const maxRanks = 1 << 16 // prevents an overflow of the sizes in a layout
	if ranks < 1 || ranks > maxRanks {
		return fmt.Errorf("the layout for %d ranks: want 1 to %d: %w", ranks, maxRanks,
			symmem.ErrInvalid)
	}

	return nil
}

// toCall returns a call without buffers, or an error if the call is invalid. The element type of a
// symmem_combine is always BFloat16.
func (a *RouteArguments) toCall(
	operation symmem.Operation, t symmem.DataType, ranks int,
) (*driver.Call, error) {
	if operation == symmem.OpCombine {
		t = symmem.BFloat16
	}

	call := &driver.Call{
		Operation: operation, DataType: t,
		Route: &driver.Route{
			Tokens: a.Tokens, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK,
			Experts: a.Experts,
		},
	}
	const maxFactor = 1<<31 - 1
	couldOverflow := max(a.MaxTokens, a.Hidden) > maxFactor
	if !couldOverflow { // otherwise, Validate returns an error
		call.Count = a.MaxTokens * a.Hidden
	}

	const someRank = 0 // the result does not depend on the rank
	err := call.Validate(ranks, someRank)
	return call, err
}

// Route queues a dispatch or a combine, depending on operation. handle is the group's handle. site
// is the number of the call site, or 0 if it is unknown.
func (cs *calls) Route(
	handle uint64, operation symmem.Operation, a *RouteArguments, stream uintptr, site uint32,
) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	args, err := a.toRouteArgs(r, operation, g.Size())
	if err != nil {
		return err
	}

	s, err := r.findStream(stream)
	if err != nil {
		return err
	}

	call := symmem.Call{Operation: operation, Route: &args}
	// queueCall registers the buffer that other ranks access.
	if operation == symmem.OpCombine {
		call.Send = args.Send
	} else {
		call.Recv = args.Recv
	}

	return cs.queueCall(r.interopAt(site), g, call, s)
}

// toRouteArgs checks the arguments and finds the memory of each buffer.
func (a *RouteArguments) toRouteArgs(
	r *rank, operation symmem.Operation, ranks int,
) (symmem.RouteArgs, error) {
	t, err := parseEnum("element type", types, a.Type)
	if err != nil {
		return symmem.RouteArgs{}, err
	}

	call, err := a.toCall(operation, t, ranks)
	if err != nil {
		return symmem.RouteArgs{}, err
	}

	args := symmem.RouteArgs{
		Routing: symmem.Routing{
			Experts: a.Experts, TopK: a.TopK, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Type: t,
			Scales: a.Scales,
		},
		Tokens: a.Tokens,
	}
	const someRank = 0 // sizes do not depend on the rank
	sendBytes, recvBytes := call.Spans(ranks, someRank)
	spans := call.OtherSpans()
	ids, weights, rowScales := spans[0], spans[1], spans[2]
	var firstErr error
	find := func(address uintptr, bytes int64) symmem.Memory {
		isUsed := bytes > 0
		if !isUsed || firstErr != nil {
			return symmem.Memory{}
		}

		m, err := r.findMemory(address, bytes)
		firstErr = err
		return m
	}
	args.Send = find(a.Send, sendBytes)
	args.Recv = find(a.Recv, recvBytes)
	args.IDs = find(a.IDs, ids.Bytes)
	args.Weights = find(a.Weights, weights.Bytes)
	args.RowScales = find(a.RowScales, rowScales.Bytes)
	return args, firstErr
}
