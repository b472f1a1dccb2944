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
	Pool   int   // number of the pool, from 0
	IsFree bool
}

// Program lists requests in order. The allocation and the free of a tensor have the same size,
// stream and pool. Some tensors are not freed.
type Program []Request

// RandomProgram returns a random program with the given numbers of requests, pools and streams.
func RandomProgram(rng *rand.Rand, requests, pools, streams int) Program {
	const maxLive = 40
	const freePercent = 45 // less than half, so that the number of live tensors grows
	var p Program
	var live []Request // allocations of the live tensors
	for len(p) < requests {
		mustFree := len(live) > maxLive
		if mustFree || (len(live) > 0 && rng.IntN(100) < freePercent) {
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
		frequentSizes := []int64{512, 64 << 10, 2 << 20, 4 << 20}
		return frequentSizes[rng.IntN(len(frequentSizes))]
	}

	const maxSize = 6 << 20
	return 1 + rng.Int64N(maxSize)
}

// DifferenceKinds lists the kinds of differences that PlantDifference creates. "different place" is
// not among them, because it depends on addresses, not on the program.
var DifferenceKinds = []string{
	"different size", "missing", "extra", "different order", "different stream", "different pool",
	"different call",
}

// PlantDifference returns a copy of a program with a difference of the given kind at a random
// request. It returns nil if that request cannot differ in this way. Most differences change the
// allocation and the free of a tensor together.
func PlantDifference(rng *rand.Rand, p Program, kind string, streams, pools int) Program {
	index := rng.IntN(len(p))
	changed := slices.Clone(p)
	original := p[index]
	switch kind {
	case "different order":
		next := index + 1
		if next >= len(changed) || changed[index].Tensor == changed[next].Tensor {
			return nil
		}

		changed[index], changed[next] = changed[next], changed[index]
		return changed
	case "different call": // an allocation instead of a free
		if !original.IsFree {
			return nil
		}

		changed[index] = Request{
			Tensor: len(p) + 1, // not in use
			Size:   randomSize(rng), Stream: original.Stream, Pool: original.Pool,
		}
		return changed
	}

	if original.IsFree { // the other differences are planted at allocations
		return nil
	}

	tensor := original.Tensor
	switch kind {
	case "different size":
		return changeTensor(changed, tensor, func(r *Request) { r.Size += 512 << rng.IntN(4) })
	case "different stream":
		return changeTensor(changed, tensor, func(r *Request) {
			r.Stream = (r.Stream + 1) % streams
		})
	case "different pool":
		return changeTensor(changed, tensor, func(r *Request) { r.Pool = (r.Pool + 1) % pools })
	case "missing":
		return slices.DeleteFunc(changed, func(r Request) bool { return r.Tensor == tensor })
	case "extra":
		return addExtraTensor(rng, changed, index)
	default:
		panic("unknown kind of difference: " + kind)
	}
}

// changeTensor applies a change to the requests of a tensor, in place.
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

// FirstDifference returns, for each pool, the index of the first request that differs between two
// programs. The index is -1 if none differs. It counts only the requests of the pool. The n-th
// tensors that the two programs allocate in a pool count as the same tensor.
func FirstDifference(a, b Program, pools int) []int {
	firsts := make([]int, pools)
	for pool := range firsts {
		requestsA := normalizedRequests(a, pool)
		requestsB := normalizedRequests(b, pool)
		if slices.Equal(requestsA, requestsB) {
			firsts[pool] = -1
			continue
		}

		shorter := min(len(requestsA), len(requestsB))
		first := 0
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
	var normalized []Request
	newTensors := map[int]int{}     // new number of each tensor
	newStreams := map[int]int{0: 0} // new number of each stream
	for _, r := range p {
		if r.Pool != pool {
			continue
		}

		if !r.IsFree {
			newTensors[r.Tensor] = len(newTensors)
		}

		if _, ok := newStreams[r.Stream]; !ok {
			newStreams[r.Stream] = len(newStreams)
		}

		r.Tensor = newTensors[r.Tensor]
		r.Stream = newStreams[r.Stream]
		normalized = append(normalized, r)
	}

	return normalized
}
