package binding

import (
	"cmp"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
)

// In a mixture of experts, a few of many experts process each token, a row of numbers.
// symmem_dispatch copies the row to the ranks that own these experts, and symmem_combine adds up
// their results on the token's rank. In between, symmem_permute sorts a rank's dispatched rows by
// expert, and symmem_unpermute restores the order for the results.

// RouteArguments holds the arguments of symmem_dispatch and symmem_combine as C passes them.
type RouteArguments struct {
	Experts   int   // on all ranks
	TopK      int   // experts for each token
	MaxTokens int64 // upper limit of Tokens on all ranks
	Hidden    int64 // elements of a row
	Scales    int64 // float32 scales of a row
	Type      int   // element type, as a number in symmem.h
	Tokens    int64 // number of this rank's tokens

	// Addresses of buffers, or 0 for unused ones.
	IDs       uintptr // TopK ids of experts for each token
	Weights   uintptr // TopK weights for each token
	RowScales uintptr // Scales scales for each token
	Send      uintptr // a row for each token; for symmem_combine, the experts' results
	Recv      uintptr // the dispatched rows; for symmem_combine, a sum for each token
}

// Layout returns the layout of the memory that symmem_dispatch writes on each of several ranks.
func (a *RouteArguments) Layout(ranks int) (symmem.DispatchLayout, error) {
	if err := checkRanks(ranks); err != nil {
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

func checkRanks(ranks int) error {
	const maxRanks = 1 << 16 // prevents an overflow of the sizes in a layout
	if ranks < 1 || ranks > maxRanks {
		return fmt.Errorf("the layout for %d ranks: want 1 to %d: %w", ranks, maxRanks,
			symmem.ErrInvalid)
	}

	return nil
}

// toCall returns a valid call without buffers. t is the element type.
func (a *RouteArguments) toCall(
	operation symmem.Operation, t symmem.DataType, ranks int,
) (*driver.Call, error) {
	if operation == symmem.OpCombine {
		t = symmem.BFloat16 // the only type that a combine supports
	}

	call := &driver.Call{
		Operation: operation, DataType: t,
		Route: &driver.Route{
			Tokens: a.Tokens, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK,
			Experts: a.Experts,
		},
	}
	const overflowLimit = 1 << 31 // Validate refuses larger factors
	if max(a.MaxTokens, a.Hidden) < overflowLimit {
		call.Count = a.MaxTokens * a.Hidden
	}

	const anyRank = 0 // the call is valid for all ranks or for none
	err := call.Validate(ranks, anyRank)
	return call, err
}

// Route queues a dispatch or, if combines is set, a combine. handle is the group's handle. site is
// the number of the call site, or 0 if it is unknown.
func (cs *calls) Route(
	handle uint64, a *RouteArguments, combines bool, stream uintptr, site uint32,
) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	operation := symmem.OpDispatch
	if combines {
		operation = symmem.OpCombine
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
	// queueCall registers the buffer that other ranks access with the group.
	if combines {
		call.Send = args.Send
	} else {
		call.Recv = args.Recv
	}

	return cs.queueCall(r.interopAt(site), g, call, s)
}

// toRouteArgs checks the arguments and finds the memory of the buffers.
func (a *RouteArguments) toRouteArgs(
	r *rank, operation symmem.Operation, ranks int,
) (args symmem.RouteArgs, err error) {
	t, err := parseEnum("element type", types, a.Type)
	if err != nil {
		return args, err
	}

	call, err := a.toCall(operation, t, ranks)
	if err != nil {
		return args, err
	}

	args = symmem.RouteArgs{
		Routing: symmem.Routing{
			Experts: a.Experts, TopK: a.TopK, MaxTokens: a.MaxTokens, Hidden: a.Hidden, Type: t,
			Scales: a.Scales,
		},
		Tokens: a.Tokens,
	}
	var firstErr error
	find := func(address uintptr, bytes int64) symmem.Memory {
		if bytes <= 0 {
			return symmem.Memory{} // the operation does not use this buffer
		}

		m, err := r.findMemory(address, bytes)
		firstErr = cmp.Or(firstErr, err)
		return m
	}
	const anyRank = 0 // sizes do not depend on the rank
	sendBytes, recvBytes := call.Spans(ranks, anyRank)
	args.Send = find(a.Send, sendBytes)
	args.Recv = find(a.Recv, recvBytes)
	otherSpans := call.OtherSpans() // in this order: IDs, Weights, RowScales
	args.IDs = find(a.IDs, otherSpans[0].Bytes)
	args.Weights = find(a.Weights, otherSpans[1].Bytes)
	args.RowScales = find(a.RowScales, otherSpans[2].Bytes)
	return args, firstErr
}

// Permute queues a symmem_permute or, if reverses is set, a symmem_unpermute. handle is the group's
// handle.
func (cs *calls) Permute(handle uint64, a *PermuteArguments, reverses bool, stream uintptr) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	p, err := a.toPermutation(g.Size(), g.Rank(), reverses)
	if err != nil {
		return err
	}

	s, err := r.findStream(stream)
	if err != nil {
		return err
	}

	args := symmem.PermuteArgs{
		Routing: symmem.Routing{
			Experts: a.Experts, TopK: a.TopK, MaxTokens: a.MaxTokens, Hidden: a.Hidden,
			Type: p.DataType, Scales: a.Scales,
		},
		Align: p.Align,
	}
	buffers := []*symmem.Memory{&args.Dispatched, &args.Permuted} // in the order of p.Spans
	if reverses {
		buffers = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
	}

	var errs [3]error // by buffer
	for i, span := range p.Spans(reverses) {
		*buffers[i], errs[i] = r.findMemory(span.Address, span.Bytes)
	}

	if err := errors.Join(errs[:]...); err != nil {
		return err
	}

	if reverses {
		return g.Unpermute(args, s)
	}

	return g.Permute(args, s)
}
