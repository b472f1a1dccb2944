package binding

import (
	"cmp"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
)

// In a mixture of experts, a few of many experts process each token. Suppose that rank 0 owns the
// experts 0 and 1, that rank 1 owns the experts 2 and 3, and that a token of rank 0 has the experts
// 1 and 2. The token has a row of numbers.
//
//   - symmem_dispatch copies the row to ranks 0 and 1, because each of them owns one of the
//     experts. Both ranks compute a new row.
//   - symmem_combine sends both new rows to rank 0, and adds them up there.
//   - symmem_permute copies dispatched rows within a rank, so that the rows of each expert are
//     adjacent. symmem_unpermute reverses this for the new rows.
//
// C passes buffers as addresses. A group is passed by a number, its handle.

// RouteArguments holds the arguments of symmem_dispatch and symmem_combine as C passes them.
type RouteArguments struct {
	Experts   int   // number of experts of all ranks
	TopK      int   // number of experts for each token
	MaxTokens int64 // maximum of Tokens on any rank
	Hidden    int64 // elements of a row
	Scales    int64 // float32 scales of a row
	Type      int   // element type, as a number in symmem.h
	Tokens    int64 // number of this rank's tokens

	// These are addresses of buffers, or 0 if the call does not use a buffer.
	IDs       uintptr // TopK ids of experts for each token
	Weights   uintptr // TopK weights for each token
	RowScales uintptr // Scales scales for each token
	Send      uintptr // the rows of this rank's tokens or, for symmem_combine, the new rows
	Recv      uintptr // what symmem_dispatch writes or, for symmem_combine, a sum for each token
}

// Layout returns the layout of the memory that symmem_dispatch writes on each of a number of ranks.
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

// checkRanks checks the number of ranks of a layout.
func checkRanks(ranks int) error {
	const maxRanks = 1 << 16 // with it, the sizes in a layout cannot overflow
	if ranks < 1 || ranks > maxRanks {
		return fmt.Errorf("the layout for %d ranks: want 1 to %d: %w", ranks, maxRanks,
			symmem.ErrInvalid)
	}

	return nil
}

// toCall returns a call with the arguments, except for the buffers, and validates it. t is the
// element type.
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
	canOverflow := max(a.MaxTokens, a.Hidden) >= 1<<31
	if !canOverflow { // otherwise, Validate returns an error
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
	// Set the buffer that other ranks access. It may have to be registered with the group first.
	if combines {
		call.Send = args.Send
	} else {
		call.Recv = args.Recv
	}

	return cs.queueCall(r.interopAt(site), g, call, s)
}

// toRouteArgs checks the arguments and finds the memory of the buffers. If several buffers cannot
// be found, it returns the first error.
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
		isUsed := bytes > 0 // by the operation
		if !isUsed {
			return symmem.Memory{}
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
	buffers := []*symmem.Memory{&args.Dispatched, &args.Permuted}
	if reverses {
		buffers = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
	}

	var errs [3]error                        // one for each buffer
	for i, span := range p.Spans(reverses) { // spans are in the order of buffers
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
