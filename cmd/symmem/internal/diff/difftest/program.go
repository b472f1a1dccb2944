// Package difftest generates input files for tests of the diff command. It executes random programs
// of allocations and frees as PyTorch's allocator would, and encodes the results as memory
// snapshots and Flight Recorder dumps of PyTorch 2.11 (torch/csrc/cuda/Module.cpp,
// c10/cuda/CUDACachingAllocator.cpp and torch/csrc/distributed/c10d/FlightRecorder.hpp).
package difftest

import (
	"math/rand/v2"
	"slices"
)

// Request allocates or frees a tensor. Except for IsFree, both requests of a tensor are the same.
type Request struct {
	Tensor int   // number of the tensor
	Size   int64 // in bytes
	Stream int   // 0 is the default stream
	Pool   int   // from 0
	IsFree bool
}

// Program lists requests in order. Some tensors are not freed.
type Program []Request

// RandomProgram returns a random program.
func RandomProgram(rng *rand.Rand, requests, pools, streams int) Program {
	const maxLive = 41     // tensors
	const freePercent = 45 // less than half, so that the number of live tensors grows to maxLive
	var p Program
	var live []Request // allocations of live tensors
	for len(p) < requests {
		mustFree := len(live) >= maxLive
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

// randomSize returns a random size. Half of the time, it is one of four frequent sizes, so that
// several free blocks fit equally well.
func randomSize(rng *rand.Rand) int64 {
	if rng.IntN(2) == 0 {
		frequentSizes := []int64{512, 64 << 10, 2 << 20, 4 << 20}
		return frequentSizes[rng.IntN(len(frequentSizes))]
	}

	const maxSize = 6 << 20
	return 1 + rng.Int64N(maxSize)
}

// DifferenceKinds lists the kinds of differences that PlantDifference creates. A program does not
// determine places, so "different place" is missing.
var DifferenceKinds = []string{
	"different size", "missing", "extra", "different order", "different stream", "different pool",
	"different call",
}

// PlantDifference returns a copy of a program with a difference at a random request. It returns nil
// if this kind of difference is not possible there.
func PlantDifference(rng *rand.Rand, p Program, kind string, pools, streams int) Program {
	index := rng.IntN(len(p))
	changed := slices.Clone(p)
	switch kind {
	case "different order":
		return swapWithNext(changed, index)
	case "different call":
		return replaceFree(rng, changed, index)
	}

	if p[index].IsFree { // the remaining kinds need an allocation
		return nil
	}

	tensor := p[index].Tensor
	switch kind {
	case "different size":
		return changeTensor(changed, tensor, func(r *Request) {
			r.Size += 512 << rng.IntN(4)
		})
	case "different stream":
		return changeTensor(changed, tensor, func(r *Request) {
			r.Stream = (r.Stream + 1) % streams
		})
	case "different pool":
		return changeTensor(changed, tensor, func(r *Request) { r.Pool = (r.Pool + 1) % pools })
	case "missing": // both requests of the tensor
		return slices.DeleteFunc(changed, func(r Request) bool { return r.Tensor == tensor })
	case "extra":
		return addTensor(rng, changed, index)
	default:
		panic("unknown kind of difference: " + kind)
	}
}

// swapWithNext swaps two requests in place. It returns nil if there is no next request, or if both
// are of the same tensor.
func swapWithNext(p Program, index int) Program {
	next := index + 1
	if next == len(p) || p[index].Tensor == p[next].Tensor {
		return nil
	}

	p[index], p[next] = p[next], p[index]
	return p
}

// replaceFree replaces a free by an allocation in place. It returns nil if there is no free at the
// index.
func replaceFree(rng *rand.Rand, p Program, index int) Program {
	r := &p[index]
	if !r.IsFree {
		return nil
	}

	*r = Request{Tensor: newTensor(p), Size: randomSize(rng), Stream: r.Stream, Pool: r.Pool}
	return p
}

// newTensor returns an unused tensor number. RandomProgram uses indexes of requests as numbers.
func newTensor(p Program) int { return len(p) }

// changeTensor changes all requests of a tensor in place.
func changeTensor(p Program, tensor int, change func(*Request)) Program {
	for i := range p {
		if p[i].Tensor == tensor {
			change(&p[i])
		}
	}

	return p
}

// addTensor inserts an allocation at an index and, in half of the cases, its free at a later index.
func addTensor(rng *rand.Rand, p Program, index int) Program {
	r := Request{
		Tensor: newTensor(p), Size: randomSize(rng), Stream: p[index].Stream, Pool: p[index].Pool,
	}
	p = slices.Insert(p, index, r)
	if rng.IntN(2) == 0 {
		r.IsFree = true
		followingRequests := len(p) - (index + 1)
		indexOfFree := index + 1 + rng.IntN(followingRequests+1)
		p = slices.Insert(p, indexOfFree, r)
	}

	return p
}

// FirstDifference returns the index of the first different request of each pool, or -1 for a pool
// with equal requests. An index counts only the requests of its pool.
func FirstDifference(a, b Program, pools int) []int {
	firsts := make([]int, pools)
	for pool := range firsts {
		requestsA := normalizedRequests(a, pool)
		requestsB := normalizedRequests(b, pool)
		if slices.Equal(requestsA, requestsB) {
			firsts[pool] = -1
			continue
		}

		minLength := min(len(requestsA), len(requestsB))
		first := 0
		for first < minLength && requestsA[first] == requestsB[first] {
			first++
		}

		firsts[pool] = first
	}

	return firsts
}

// normalizedRequests returns the requests of a pool, with tensors and streams renumbered in the
// order of their first use. The default stream keeps the number 0.
func normalizedRequests(p Program, pool int) []Request {
	var normalized []Request
	newTensors := map[int]int{}     // new number by old number
	newStreams := map[int]int{0: 0} // new number by old number
	for _, r := range p {
		if r.Pool != pool {
			continue
		}

		if !r.IsFree {
			newTensors[r.Tensor] = len(newTensors)
		}

		if _, hasNumber := newStreams[r.Stream]; !hasNumber {
			newStreams[r.Stream] = len(newStreams)
		}

		r.Tensor = newTensors[r.Tensor]
		r.Stream = newStreams[r.Stream]
		normalized = append(normalized, r)
	}

	return normalized
}
