// Package difftest generates input files for testing the diff command. It draws random programs of
// allocations and frees, and executes them under PyTorch's placement rule. It encodes the results
// as memory snapshots and Flight Recorder dumps of PyTorch 2.11 (torch/csrc/cuda/Module.cpp,
// c10/cuda/CUDACachingAllocator.cpp and torch/csrc/distributed/c10d/FlightRecorder.hpp).
package difftest

import (
	"math/rand/v2"
	"slices"
)

// Request allocates a tensor or, if Free is set, frees it.
type Request struct {
	Tensor int
	Size   int64
	Stream int
	Pool   int
	IsFree bool
}

// Program lists requests. The request that frees a tensor has the same size, stream and pool as the
// request that allocated the tensor.
type Program []Request

// RandomProgram returns a random program that uses the given number of pools and streams.
func RandomProgram(rng *rand.Rand, requests, pools, streams int) Program {
	var p Program
	var live []Request
	for len(p) < requests {
		if len(live) > 40 || len(live) > 0 && rng.IntN(100) < 45 {
			at := rng.IntN(len(live))
			r := live[at]
			r.IsFree = true
			p = append(p, r)
			live = slices.Delete(live, at, at+1)
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

// randomSize returns one of four common sizes half of the time, so that there are often several
// free blocks of the same size.
func randomSize(rng *rand.Rand) int64 {
	if rng.IntN(2) == 0 {
		return []int64{512, 64 << 10, 2 << 20, 4 << 20}[rng.IntN(4)]
	}
	return 1 + rng.Int64N(6<<20)
}

// DifferenceKinds lists the kinds of differences that Plant creates. "other place" is not among
// them, because addresses cause that difference rather than the program.
var DifferenceKinds = []string{
	"other size", "missing", "extra", "other order", "other stream", "other pool", "other call",
}

// PlantDifference returns a copy of a program with a difference of the given kind at a random
// request, or nil if that request cannot differ in this way. It adds, removes or changes a tensor's
// allocation together with its free.
func PlantDifference(rng *rand.Rand, p Program, kind string, streams, pools int) Program {
	at := rng.IntN(len(p))
	planted := slices.Clone(p)
	r := planted[at]
	if r.IsFree != (kind == "other call") && kind != "other order" {
		return nil
	}
	switch kind {
	case "other size":
		return changeTensor(planted, r.Tensor, func(r *Request) { r.Size += 512 << rng.IntN(4) })
	case "other stream":
		return changeTensor(planted, r.Tensor, func(r *Request) { r.Stream = (r.Stream + 1) % streams })
	case "other pool":
		return changeTensor(planted, r.Tensor, func(r *Request) { r.Pool = (r.Pool + 1) % pools })
	case "missing":
		return slices.DeleteFunc(planted, func(o Request) bool { return o.Tensor == r.Tensor })
	case "extra":
		return plantExtra(rng, planted, at)
	case "other order":
		if at+1 >= len(planted) || planted[at].Tensor == planted[at+1].Tensor {
			return nil
		}
		planted[at], planted[at+1] = planted[at+1], planted[at]
		return planted
	}
	// For "other call", replace a free with an allocation.
	planted[at] = Request{
		Tensor: len(p) + 1, Size: randomSize(rng), Stream: r.Stream, Pool: r.Pool,
	}
	return planted
}

func changeTensor(p Program, tensor int, apply func(*Request)) Program {
	for i := range p {
		if p[i].Tensor == tensor {
			apply(&p[i])
		}
	}
	return p
}

func plantExtra(rng *rand.Rand, p Program, at int) Program {
	extra := Request{
		Tensor: len(p) + 1, Size: randomSize(rng), Stream: p[at].Stream, Pool: p[at].Pool,
	}
	p = slices.Insert(p, at, extra)
	if rng.IntN(2) == 0 {
		extra.IsFree = true
		p = slices.Insert(p, at+1+rng.IntN(len(p)-at), extra)
	}
	return p
}

// FirstDifference returns, for each pool, the index of the first request that differs between two
// programs, or -1 if there is no difference. Tensors are considered the same if they are allocated
// in the same order in the pool.
func FirstDifference(a, b Program, pools int) []int {
	all := make([]int, pools)
	for pool := range all {
		requestsA, requestsB := normalizedRequests(a, pool), normalizedRequests(b, pool)
		all[pool] = -1
		if !slices.Equal(requestsA, requestsB) {
			first, n := 0, min(len(requestsA), len(requestsB))
			for first < n && requestsA[first] == requestsB[first] {
				first++
			}
			all[pool] = first
		}
	}
	return all
}

// normalizedRequests lists the requests of a pool, with tensors and streams numbered by their first
// use. The default stream keeps its number, 0.
func normalizedRequests(p Program, pool int) []Request {
	var all []Request
	tensors, streams := map[int]int{}, map[int]int{0: 0}
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
