package binding

import (
	"cmp"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
)

// RouteArguments holds the arguments of symmem_dispatch and symmem_combine as C passes them.
type RouteArguments struct {
	Experts, TopK             int
	MaxTokens, Hidden, Scales int64
	Type                      int
	Tokens                    int64
	IDs, Weights, RowScales   uintptr
	Send, Recv                uintptr
}

// toCall converts the arguments to a call without buffers, and validates the call as that of rank
// 0, because the validity does not depend on the rank. A combine always has type BFloat16.
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
	if max(a.MaxTokens, a.Hidden) < 1<<31 { // so that the product cannot overflow
		call.Count = a.MaxTokens * a.Hidden
	}
	return call, call.Validate(ranks, 0)
}

func checkRanks(ranks int) error {
	const maxRanks = 1 << 16
	if ranks < 1 || ranks > maxRanks {
		return fmt.Errorf("the layout for %d ranks: want 1 to %d: %w", ranks, maxRanks,
			symmem.ErrInvalid)
	}
	return nil
}

// Layout returns the layout of the memory that symmem_dispatch writes in a group of this size.
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
	return call.Route.Layout(ranks, a.Hidden*int64(t.Size())), nil
}

// Route queues a dispatch or, if combines is set, a combine.
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
	call := symmem.Call{Operation: operation, Route: &args, Recv: args.Recv}
	if combines {
		call.Send, call.Recv = args.Send, symmem.Memory{}
	}
	return cs.queueCall(r.interopAt(site), g, call, s)
}

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
	sendBytes, recvBytes := call.Spans(ranks, 0)
	otherSpans := call.OtherSpans()
	for _, buffer := range []struct {
		memory  *symmem.Memory
		address uintptr
		bytes   int64 // 0 if the call does not use the buffer
	}{
		{&args.Send, a.Send, sendBytes},
		{&args.Recv, a.Recv, recvBytes},
		{&args.IDs, a.IDs, otherSpans[0].Bytes},
		{&args.Weights, a.Weights, otherSpans[1].Bytes},
		{&args.RowScales, a.RowScales, otherSpans[2].Bytes},
	} {
		if buffer.bytes > 0 {
			var findErr error
			*buffer.memory, findErr = r.findMemory(buffer.address, buffer.bytes)
			err = cmp.Or(err, findErr)
		}
	}
	return args, err
}

// Permute queues a permutation or, if reverses is set, its reversal.
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
	queue := g.Permute
	buffers := []*symmem.Memory{&args.Dispatched, &args.Permuted} // in the order of p.Spans
	if reverses {
		queue = g.Unpermute
		buffers = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
	}
	for i, span := range p.Spans(reverses) {
		var findErr error
		*buffers[i], findErr = r.findMemory(span.Address, span.Bytes)
		err = errors.Join(err, findErr)
	}
	if err != nil {
		return err
	}
	return queue(args, s)
}
