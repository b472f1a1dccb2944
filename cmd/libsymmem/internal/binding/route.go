package binding

import (
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
	Experts   int   // experts of all ranks
	TopK      int   // experts for each token
	MaxTokens int64 // maximum of Tokens on any rank
	Hidden    int64 // elements of a row
	Scales    int64 // float32 scales of a row
	Type      int   // element type, as a number in symmem.h
	Tokens    int64 // tokens of this rank

	// Addresses of buffers, or 0 for unused ones.
	IDs       uintptr // TopK ids of experts for each token
	Weights   uintptr // TopK weights for each token
	RowScales uintptr // the scales of each row
	Send      uintptr // a row for each token; for symmem_combine, the experts' results
	Recv      uintptr // the dispatched rows; for symmem_combine, a sum for each token
}

// Layout returns the layout of the memory that symmem_dispatch writes on each rank.
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

// toCall returns a valid call without buffers. t is the element type of a dispatch.
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
	const maxFactor = 1<<31 - 1 // larger factors could overflow, and Validate refuses them
	if max(a.MaxTokens, a.Hidden) <= maxFactor {
		call.Count = a.MaxTokens * a.Hidden
	}

	const anyRank = 0 // the result does not depend on the rank
	err := call.Validate(ranks, anyRank)
	return call, err
}

// Route queues a symmem_combine if combines is set, and a symmem_dispatch otherwise. handle is the
// group's handle. site is the number of the call site, or 0 if it is unknown.
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
	// Other ranks access this buffer, so queueCall registers it.
	if combines {
		call.Send = args.Send
	} else {
		call.Recv = args.Recv
	}

	return cs.queueCall(r.interopAt(site), g, call, s)
}

// toRouteArgs checks the arguments and finds the memory of each buffer.
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
	const anyRank = 0 // sizes do not depend on the rank
	sendBytes, recvBytes := call.Spans(ranks, anyRank)
	otherSpans := call.OtherSpans() // of IDs, Weights and RowScales, in this order
	for _, buffer := range [...]struct {
		memory  *symmem.Memory
		address uintptr
		bytes   int64 // 0 if the operation does not use the buffer
	}{
		{&args.Send, a.Send, sendBytes},
		{&args.Recv, a.Recv, recvBytes},
		{&args.IDs, a.IDs, otherSpans[0].Bytes},
		{&args.Weights, a.Weights, otherSpans[1].Bytes},
		{&args.RowScales, a.RowScales, otherSpans[2].Bytes},
	} {
		if buffer.bytes <= 0 {
			continue
		}

		*buffer.memory, err = r.findMemory(buffer.address, buffer.bytes)
		if err != nil {
			return args, err
		}
	}

	return args, nil
}

// Permute queues a symmem_unpermute if reverses is set, and a symmem_permute otherwise. handle is
// the group's handle.
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
	// Buffers are in the order of p.Spans.
	buffers := []*symmem.Memory{&args.Dispatched, &args.Permuted}
	if reverses {
		buffers = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
	}

	const maxBuffers = 3
	var errs [maxBuffers]error
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
