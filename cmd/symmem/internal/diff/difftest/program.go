// Package difftest generates input files for tests of the diff command. It executes random programs
// of allocations and frees as PyTorch's allocator would. It encodes the results as memory snapshots
// and Flight Recorder dumps of PyTorch 2.11 (torch/csrc/cuda/Module.cpp,
// c10/cuda/CUDACachingAllocator.cpp and torch/csrc/distributed/c10d/FlightRecorder.hpp).
package difftest

import (
	"math/rand/v2"
	"slices"
)

// Request allocates a tensor or, if IsFree is set, frees it.
type Request struct {
	Tensor int   // number of the tensor
	Size   int64 // in bytes
	Stream int   // number of the stream; 0 is the default stream
	Pool   int   // number of the pool
	IsFree bool
}

// Program lists requests. The allocation and the free of a tensor have the same size, stream and
// pool.
type Program []Request

// RandomProgram returns a random program with the given numbers of requests, pools and streams.
func RandomProgram(rng *rand.Rand, requests, pools, streams int) Program {
	const maxLive = 40
	var p Program
	var live []Request // allocations of the live tensors
	for len(p) < requests {
		if len(live) > maxLive || len(live) > 0 && rng.IntN(100) < 45 {
			index := rng.IntN(len(live))
			r := live[index]
			r.IsFree = true
			p = append(p, r)
			live = slices.Delete(live, index, index+1)
			continue
		}
		r := Request{
			Tensor: len(p), Size: randomSize(rng), Stream: rng.IntN(streams), Pool: rng.IntN(pools),
		}
		p = append(p, r)
		live = append(live, r)
	}
	return p
}

// randomSize returns a random size. It often returns one of four sizes, so that several free
// blocks have the same size.
func randomSize(rng *rand.Rand) int64 {
	if rng.IntN(2) == 0 {
		return []int64{512, 64 << 10, 2 << 20, 4 << 20}[rng.IntN(4)]
	}
	return 1 + rng.Int64N(6<<20)
}

// DifferenceKinds lists the kinds of differences that PlantDifference creates. "different place" is
// not among them, because it depends on addresses, not on the program.
var DifferenceKinds = []string{
	"different size", "missing", "extra", "different order", "different stream", "different pool",
	"different call",
}

// PlantDifference returns a copy of a program with a difference of the given kind at a random
// request, or nil if that request cannot differ in this way. It changes the allocation and the free
// of a tensor together.
func PlantDifference(rng *rand.Rand, p Program, kind string, streams, pools int) Program {
	index := rng.IntN(len(p))
	changed := slices.Clone(p)
	r := changed[index]
	mustBeFree := kind == "different call"
	canBeAny := kind == "different order"
	if r.IsFree != mustBeFree && !canBeAny {
		return nil
	}
	switch kind {
	case "different size":
		return changeTensor(changed, r.Tensor, func(r *Request) { r.Size += 512 << rng.IntN(4) })
	case "different stream":
		return changeTensor(changed, r.Tensor, func(r *Request) { r.Stream = (r.Stream + 1) % streams })
	case "different pool":
		return changeTensor(changed, r.Tensor, func(r *Request) { r.Pool = (r.Pool + 1) % pools })
	case "missing":
		return slices.DeleteFunc(changed, func(o Request) bool { return o.Tensor == r.Tensor })
	case "extra":
		return addExtraTensor(rng, changed, index)
	case "different order":
		if index+1 >= len(changed) || changed[index].Tensor == changed[index+1].Tensor {
			return nil
		}
		changed[index], changed[index+1] = changed[index+1], changed[index]
		return changed
	}
	// A different call: replace a free with an allocation.
	changed[index] = Request{
		Tensor: len(p) + 1, Size: randomSize(rng), Stream: r.Stream, Pool: r.Pool,
	}
	return changed
}

func changeTensor(p Program, tensor int, apply func(*Request)) Program {
	for i := range p {
		if p[i].Tensor == tensor {
			apply(&p[i])
		}
	}
	return p
}

// addExtraTensor inserts the allocation of an extra tensor at an index. For half of the tensors,
// it also inserts the free at a later index.
func addExtraTensor(rng *rand.Rand, p Program, index int) Program {
	extra := Request{
		Tensor: len(p) + 1, Size: randomSize(rng), Stream: p[index].Stream, Pool: p[index].Pool,
	}
	p = slices.Insert(p, index, extra)
	if rng.IntN(2) == 0 {
		extra.IsFree = true
		p = slices.Insert(p, index+1+rng.IntN(len(p)-index), extra)
	}
	return p
}

// FirstDifference returns the index of the first request that differs between two programs, for
// each pool, or -1. It counts the requests of each pool separately. Tensors are the same if they
// are allocated by the n-th allocation of both programs in a pool.
func FirstDifference(a, b Program, pools int) []int {
	firsts := make([]int, pools)
	for pool := range firsts {
		requestsA, requestsB := normalizedRequests(a, pool), normalizedRequests(b, pool)
		if slices.Equal(requestsA, requestsB) {
			firsts[pool] = -1
			continue
		}
		first, shorter := 0, min(len(requestsA), len(requestsB))
		for first < shorter && requestsA[first] == requestsB[first] {
			first++
		}
		firsts[pool] = first
	}
	return firsts
}

// normalizedRequests returns the requests of a pool, with tensors and streams numbered by first
// use. The default stream keeps its number, 0.
func normalizedRequests(p Program, pool int) []Request {
	var all []Request
	tensors, streams := map[int]int{}, map[int]int{0: 0} // new numbers by old numbers
	for _, r := range p {
		if r.Pool != pool {
			continue
		}
		if !r.IsFree {
			tensors[r.Tensor] = len(tensors)
		}
		if _, ok := streams[r.Stream]; !ok {
			streams[r.Stream] = len(streams)
		}
		r.Tensor, r.Stream = tensors[r.Tensor], streams[r.Stream]
		all = append(all, r)
	}
	return all
}
