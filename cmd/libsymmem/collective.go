package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// goCall runs a collective, a send or a receive. A call with more_count 2 runs together with the
// two calls in its array more. site is the number of the caller's call site, or 0.
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
	sender := call.from // a copy, so that Arrived does not retain call
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

// maxRemainingCalls bounds the memory that remainingCalls reads if more_count is invalid.
const maxRemainingCalls = 1 << 16

// remainingCalls converts the calls in call.more.
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
		position := i + 1 // call is at position 0
		if next.size != call.size || next.more_count > 0 {
			return nil, fmt.Errorf("call %d of a list has size %d and more_count %d; want size %d "+
				"and more_count 0: %w", position, next.size, next.more_count, call.size,
				symmem.ErrInvalid)
		}

		if next.event != nil {
			return nil, fmt.Errorf("call %d of a list has an event, which only the first call may "+
				"have: %w", position, symmem.ErrInvalid)
		}

		arguments, err := argumentsOf(&next, site)
		if err != nil {
			return nil, err
		}

		list[i] = arguments
	}

	return list, nil
}

// copyEntry copies an entry of call.more. In a program compiled with an older symmem.h, an entry
// has only the first call.size bytes of the struct. The remaining fields are then 0.
func copyEntry(call *C.struct_symmem_call, index int) (entry C.struct_symmem_call) {
	src := unsafe.Add(unsafe.Pointer(call.more), uintptr(index)*uintptr(call.size))
	srcBytes := unsafe.Slice((*byte)(src), call.size)
	entryBytes := unsafe.Slice((*byte)(unsafe.Pointer(&entry)), call.size)
	copy(entryBytes, srcBytes)
	return entry
}

// splitsOf copies the counts and offsets of a collective whose parts differ in size. Each array has
// an element for each rank.
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
	group C.uint64_t, norm *C.struct_symmem_norm, scatters C.int, stream C.uint64_t,
	site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Norm(uint64(group), &binding.NormArguments{
			Scatters: scatters != 0, Type: int(norm._type), Quant: int(norm.quant),
			Rows: int64(norm.rows), Hidden: int64(norm.hidden),
			Epsilon: float32(norm.epsilon), WeightBias: float32(norm.weight_bias),
			Input: uintptr(norm.input), Residual: uintptr(norm.residual),
			Weight: uintptr(norm.weight), Output: uintptr(norm.output),
			Quantized: uintptr(norm.quantized), Scales: uintptr(norm.scales),
			ScaleStrides: [2]int64{
				int64(norm.scale_strides[0]), int64(norm.scale_strides[1]),
			},
			Stream: uintptr(stream), Site: uint32(site),
		})
	})
}

// goRoute implements symmem_dispatch and, if combines is not 0, symmem_combine.
//
//export goRoute
func goRoute(
	group C.uint64_t, route *C.struct_symmem_route, combines C.int, stream C.uint64_t,
	site C.uint32_t,
) C.int {
	operation := symmem.OpDispatch
	if combines != 0 {
		operation = symmem.OpCombine
	}

	return guard(func() error {
		return library.Route(uint64(group), operation, routeArguments(route), uintptr(stream),
			uint32(site))
	})
}

// goRouteLayout implements symmem_route_layout.
//
//export goRouteLayout
func goRouteLayout(
	route *C.struct_symmem_route, ranks C.int, layout *C.struct_symmem_route_layout,
) C.int {
	return guard(func() error {
		if layout == nil {
			return nullPointerError("the address for the layout")
		}

		result, err := routeArguments(route).Layout(int(ranks))
		if err != nil {
			return err
		}

		*layout = C.struct_symmem_route_layout{
			rows: C.int64_t(result.Rows), scales: C.int64_t(result.Scales),
			weights: C.int64_t(result.Weights), ids: C.int64_t(result.IDs),
			counts: C.int64_t(result.Counts), bytes: C.int64_t(result.Bytes),
		}
		return nil
	})
}

func routeArguments(route *C.struct_symmem_route) *binding.RouteArguments {
	return &binding.RouteArguments{
		Experts: int(route.experts), TopK: int(route.top_k), MaxTokens: int64(route.max_tokens),
		Hidden: int64(route.hidden), Scales: int64(route.scales), Type: int(route._type),
		Tokens: int64(route.tokens), IDs: uintptr(route.ids), Weights: uintptr(route.weights),
		RowScales: uintptr(route.row_scales), Send: uintptr(route.send), Recv: uintptr(route.recv),
	}
}

// goPermute implements symmem_permute and, if reverses is not 0, symmem_unpermute.
//
//export goPermute
func goPermute(
	group C.uint64_t, permute *C.struct_symmem_permute, reverses C.int, stream C.uint64_t,
) C.int {
	return guard(func() error {
		return library.Permute(uint64(group), permuteArguments(permute), reverses != 0, uintptr(stream))
	})
}

// goPermuteLayout implements symmem_permute_layout.
//
//export goPermuteLayout
func goPermuteLayout(
	permute *C.struct_symmem_permute, ranks C.int, layout *C.struct_symmem_permute_layout,
) C.int {
	return guard(func() error {
		if layout == nil {
			return nullPointerError("the address for the layout")
		}

		result, err := permuteArguments(permute).Layout(int(ranks))
		if err != nil {
			return err
		}

		*layout = C.struct_symmem_permute_layout{
			rows: C.int64_t(result.Rows), scales: C.int64_t(result.Scales),
			weights: C.int64_t(result.Weights), experts: C.int64_t(result.Experts),
			places: C.int64_t(result.Places), firsts: C.int64_t(result.Firsts),
			counts: C.int64_t(result.Counts), received: C.int64_t(result.Received),
			bytes: C.int64_t(result.Bytes), capacity: C.int64_t(result.Capacity),
		}
		return nil
	})
}

func permuteArguments(permute *C.struct_symmem_permute) *binding.PermuteArguments {
	return &binding.PermuteArguments{
		Experts: int(permute.experts), TopK: int(permute.top_k), MaxTokens: int64(permute.max_tokens),
		Hidden: int64(permute.hidden), Scales: int64(permute.scales), Type: int(permute._type),
		Align: int64(permute.align), Dispatched: uintptr(permute.dispatched),
		Permuted: uintptr(permute.permuted),
		Computed: uintptr(permute.computed), Returned: uintptr(permute.returned),
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
