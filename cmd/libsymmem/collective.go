package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// goCall makes a collective, a send or a receive. To run three calls together, the first has
// more_count 2, and more is a list of the other two. site is the number of a call site, or 0.
//
//export goCall
func goCall(call *C.struct_symmem_call, site C.uint32_t) C.int {
	return guard(func() error {
		arguments, err := argumentsOf(call, site)
		if err != nil {
			return err
		}

		if call.more_count > 0 {
			arguments.More, err = remainingCalls(call, site)
			if err != nil {
				return err
			}
		}

		arguments.Event = (*uint64)(unsafe.Pointer(call.event))
		return library.Do(uint64(call.group), &arguments)
	})
}

// argumentsOf converts all fields of a call except event and more.
func argumentsOf(call *C.struct_symmem_call, site C.uint32_t) (binding.Arguments, error) {
	unknownFlags := call.flags &^ C.SYMMEM_CALL_WAIT
	if unknownFlags != 0 {
		return binding.Arguments{}, fmt.Errorf("unknown flags %#x of a call: %w", unknownFlags,
			symmem.ErrInvalid)
	}

	arguments := binding.Arguments{
		Operation: int(call.operation), Type: int(call._type), Count: int64(call.count),
		Op: int(call.op), Factor: float64(call.factor), Path: int(call.path),
		Root: int(call.root), Tag: int(call.tag),
		Send: uintptr(call.send), Recv: uintptr(call.recv),
		Stream: uintptr(call.stream), Site: uint32(site),
		Wait: (call.flags & C.SYMMEM_CALL_WAIT) != 0,
	}
	sender := call.from // so that Arrived does not retain call
	if sender != nil {
		arguments.Arrived = func(rank int) { *sender = C.int32_t(rank) }
	}

	hasSplits := call.send_counts != nil || call.recv_counts != nil
	if hasSplits {
		splits, err := splitsOf(call)
		if err != nil {
			return arguments, err
		}

		arguments.Splits = splits
	}

	return arguments, nil
}

// maxRemainingCalls limits how far an invalid more_count makes remainingCalls read.
const maxRemainingCalls = 1 << 16

// remainingCalls converts the calls of call.more.
func remainingCalls(call *C.struct_symmem_call, site C.uint32_t) ([]binding.Arguments, error) {
	if call.more == nil {
		return nil, fmt.Errorf("more_count is %d, but more is a null pointer: %w", call.more_count,
			symmem.ErrInvalid)
	}

	if call.more_count > maxRemainingCalls {
		return nil, fmt.Errorf("more_count is %d; the maximum is %d: %w", call.more_count,
			maxRemainingCalls, symmem.ErrInvalid)
	}

	list := make([]binding.Arguments, call.more_count)
	for i := range list {
		next := copyEntry(call, i)
		if next.size != call.size || next.more_count > 0 {
			return nil, fmt.Errorf("call %d of a list has size %d and more_count %d; want size %d "+
				"and more_count 0: %w", i+1, next.size, next.more_count, call.size,
				symmem.ErrInvalid)
		}

		if next.event != nil {
			return nil, fmt.Errorf("call %d of a list has an event, which only the first call may "+
				"have: %w", i+1, symmem.ErrInvalid)
		}

		arguments, err := argumentsOf(&next, site)
		if err != nil {
			return nil, err
		}

		list[i] = arguments
	}

	return list, nil
}

// copyEntry copies an entry of call.more. If the caller was compiled with an older symmem.h, its
// entries of call.size bytes are smaller than ours. The missing fields are then 0.
func copyEntry(call *C.struct_symmem_call, index int) (entry C.struct_symmem_call) {
	src := unsafe.Add(unsafe.Pointer(call.more), uintptr(index)*uintptr(call.size))
	srcBytes := unsafe.Slice((*byte)(src), call.size)
	entryBytes := unsafe.Slice((*byte)(unsafe.Pointer(&entry)), call.size)
	copy(entryBytes, srcBytes)
	return entry
}

// splitsOf copies the counts and offsets of the parts that ranks exchange, one for each rank.
func splitsOf(call *C.struct_symmem_call) (*symmem.Splits, error) {
	if call.ranks == 0 || call.ranks > maxRanks {
		return nil, fmt.Errorf("splits for %d ranks; want 1 to %d: %w", call.ranks, maxRanks,
			symmem.ErrInvalid)
	}

	return &symmem.Splits{
		SendCounts:  copyIntegers(call.ranks, call.send_counts),
		SendOffsets: copyIntegers(call.ranks, call.send_offsets),
		RecvCounts:  copyIntegers(call.ranks, call.recv_counts),
		RecvOffsets: copyIntegers(call.ranks, call.recv_offsets),
	}, nil
}

// copyIntegers copies a C array. It returns nil if src is nil.
func copyIntegers(count C.size_t, src *C.int64_t) []int64 {
	if src == nil {
		return nil
	}

	dst := make([]int64, count)
	for i, value := range unsafe.Slice(src, int(count)) {
		dst[i] = int64(value)
	}

	return dst
}

// goNorm implements symmem_norm and, if scatters is not 0, symmem_scattered_norm.
//
//export goNorm
func goNorm(
	group C.uint64_t, n *C.struct_symmem_norm, scatters C.int, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Norm(uint64(group), &binding.NormArguments{
			Scatters: scatters != 0, Type: int(n._type), Quant: int(n.quant),
			Rows: int64(n.rows), Hidden: int64(n.hidden),
			Epsilon: float32(n.epsilon), WeightBias: float32(n.weight_bias),
			Input: uintptr(n.input), Residual: uintptr(n.residual), Weight: uintptr(n.weight),
			Output: uintptr(n.output), Quantized: uintptr(n.quantized), Scales: uintptr(n.scales),
			ScaleStrides: [2]int64{int64(n.scale_strides[0]), int64(n.scale_strides[1])},
			Stream:       uintptr(stream), Site: uint32(site),
		})
	})
}

// goRoute implements symmem_dispatch and, if combines is not 0, symmem_combine.
//
//export goRoute
func goRoute(
	group C.uint64_t, r *C.struct_symmem_route, combines C.int, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Route(uint64(group), routeArguments(r), combines != 0, uintptr(stream),
			uint32(site))
	})
}

// goRouteLayout implements symmem_route_layout.
//
//export goRouteLayout
func goRouteLayout(
	r *C.struct_symmem_route, ranks C.int, layout *C.struct_symmem_route_layout,
) C.int {
	return guard(func() error {
		if layout == nil {
			return nullPointerError("the address for the layout")
		}

		l, err := routeArguments(r).Layout(int(ranks))
		if err != nil {
			return err
		}

		*layout = C.struct_symmem_route_layout{
			rows: C.int64_t(l.Rows), scales: C.int64_t(l.Scales), weights: C.int64_t(l.Weights),
			ids: C.int64_t(l.IDs), counts: C.int64_t(l.Counts), bytes: C.int64_t(l.Bytes),
		}
		return nil
	})
}

func routeArguments(r *C.struct_symmem_route) *binding.RouteArguments {
	return &binding.RouteArguments{
		Experts: int(r.experts), TopK: int(r.top_k), MaxTokens: int64(r.max_tokens),
		Hidden: int64(r.hidden), Scales: int64(r.scales), Type: int(r._type),
		Tokens: int64(r.tokens), IDs: uintptr(r.ids), Weights: uintptr(r.weights),
		RowScales: uintptr(r.row_scales), Send: uintptr(r.send), Recv: uintptr(r.recv),
	}
}

// goPermute implements symmem_permute and, if reverses is not 0, symmem_unpermute.
//
//export goPermute
func goPermute(
	group C.uint64_t, p *C.struct_symmem_permute, reverses C.int, stream C.uint64_t,
) C.int {
	return guard(func() error {
		return library.Permute(uint64(group), permuteArguments(p), reverses != 0, uintptr(stream))
	})
}

// goPermuteLayout implements symmem_permute_layout.
//
//export goPermuteLayout
func goPermuteLayout(
	p *C.struct_symmem_permute, ranks C.int, layout *C.struct_symmem_permute_layout,
) C.int {
	return guard(func() error {
		if layout == nil {
			return nullPointerError("the address for the layout")
		}

		l, err := permuteArguments(p).Layout(int(ranks))
		if err != nil {
			return err
		}

		*layout = C.struct_symmem_permute_layout{
			rows: C.int64_t(l.Rows), scales: C.int64_t(l.Scales), weights: C.int64_t(l.Weights),
			experts: C.int64_t(l.Experts), places: C.int64_t(l.Places), firsts: C.int64_t(l.Firsts),
			counts: C.int64_t(l.Counts), received: C.int64_t(l.Received), bytes: C.int64_t(l.Bytes),
			capacity: C.int64_t(l.Capacity),
		}
		return nil
	})
}

func permuteArguments(p *C.struct_symmem_permute) *binding.PermuteArguments {
	return &binding.PermuteArguments{
		Experts: int(p.experts), TopK: int(p.top_k), MaxTokens: int64(p.max_tokens),
		Hidden: int64(p.hidden), Scales: int64(p.scales), Type: int(p._type), Align: int64(p.align),
		Dispatched: uintptr(p.dispatched), Permuted: uintptr(p.permuted),
		Computed: uintptr(p.computed), Returned: uintptr(p.returned),
	}
}

// goSynchronize implements symmem_stream_synchronize.
//
//export goSynchronize
func goSynchronize(stream C.uint64_t) C.int {
	return guard(func() error { return library.Synchronize(uintptr(stream)) })
}

// goForget implements symmem_stream_forget.
//
//export goForget
func goForget(stream C.uint64_t) C.int {
	return guard(func() error { return library.ForgetStream(uintptr(stream)) })
}

// goIdle implements symmem_streams_idle.
//
//export goIdle
func goIdle(idle C.int) C.int {
	return guard(func() error { return library.SetIdle(idle != 0) })
}
