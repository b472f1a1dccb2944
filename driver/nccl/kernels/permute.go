package kernels

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// permuteArguments has the layout of struct Permute in src/permute.h.
type permuteArguments struct {
	ranks, maxTokens, topK, rowBytes, scales, align uint32
	computedBytes                                   uint32
	firstExpert, ownExperts, experts, capacity      uint32
	dispatched, permuted, computed, returned        uintptr
	scalesAt, weightsAt, idsAt, countsAt            int64

	toScales, toWeights, toExperts, toPlaces, toFirsts, toCounts, toReceived int64
}

// Permute returns the launch of a Permute or, if returns is set, of an Unpermute.
func Permute(p *driver.Permutation, returns bool, multiprocessors int) (Step, error) {
	if p.Ranks > MaxRanks {
		return Step{}, fmt.Errorf("%w for %d ranks", errNoKernel, p.Ranks)
	}

	r := &p.Route
	rowBytes, computedBytes := p.RowBytes()
	from, to := r.Layout(p.Ranks, rowBytes), p.Layout()
	first := r.FirstExpert(p.Ranks, p.Rank)
	args := permuteArguments{
		ranks: uint32(p.Ranks), maxTokens: uint32(r.MaxTokens), topK: uint32(r.TopK),
		rowBytes: uint32(rowBytes), scales: uint32(r.Scales), align: uint32(p.Align),
		computedBytes: uint32(computedBytes), firstExpert: uint32(first),
		ownExperts: uint32(r.FirstExpert(p.Ranks, p.Rank+1) - first),
		experts:    uint32(r.MostExperts(p.Ranks)), capacity: uint32(to.Capacity),
		dispatched: p.Dispatched, permuted: p.Permuted, computed: p.Computed, returned: p.Returned,
		scalesAt: from.Scales, weightsAt: from.Weights, idsAt: from.IDs, countsAt: from.Counts,
		toScales: to.Scales, toWeights: to.Weights, toExperts: to.Experts, toPlaces: to.Places,
		toFirsts: to.Firsts, toCounts: to.Counts, toReceived: to.Received,
	}
	kernel := "permute_rows"
	if returns {
		kernel = "unpermute_rows"
	}

	return Step{
		Kernel: kernel, Blocks: multiprocessors, Threads: routeThreads, Params: cuda.ParamsOf(&args),
		Local: true,
	}, nil
}
