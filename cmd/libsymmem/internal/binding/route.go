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

// toCall returns a call that is valid, except for its buffers.
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
	if max(a.MaxTokens, a.Hidden) < 1<<31 {
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

// Layout returns the layout of the memory that symmem_dispatch writes.
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

// Route queues a dispatch or a combine.
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
	var errs [5]error
	find := func(i int, m *symmem.Memory, address uintptr, bytes int64) {
		if bytes > 0 {
			*m, errs[i] = r.findMemory(address, bytes)
		}
	}
	find(0, &args.Send, a.Send, sendBytes)
	find(1, &args.Recv, a.Recv, recvBytes)
	spans := call.OtherSpans()
	find(2, &args.IDs, a.IDs, spans[0].Bytes)
	find(3, &args.Weights, a.Weights, spans[1].Bytes)
	find(4, &args.RowScales, a.RowScales, spans[2].Bytes)
	return args, cmp.Or(errs[:]...)
}

// Permute queues a permutation or, if returns is set, its reversal.
func (cs *calls) Permute(handle uint64, a *PermuteArguments, returns bool, stream uintptr) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}
	p, err := a.toPermutation(g.Size(), g.Rank(), returns)
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
	memory, queue := []*symmem.Memory{&args.Dispatched, &args.Permuted}, g.Permute
	if returns {
		memory = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
		queue = g.Unpermute
	}
	for i, span := range p.Spans(returns) {
		var findErr error
		*memory[i], findErr = r.findMemory(span.Address, span.Bytes)
		err = errors.Join(err, findErr)
	}
	if err != nil {
		return err
	}
	return queue(args, s)
}
