package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"

	"symmem"
)

// routeBytes is the size of the ids and weights at the end of the input, for the largest shape.
const routeBytes = 1 << 20

func (e *exchangeShape) routing() symmem.Routing {
	routing := symmem.Routing{
		Experts: e.experts, TopK: e.topK, MaxTokens: slices.Max(e.counts), Hidden: e.hidden,
		Type: symmem.BFloat16,
	}
	if e.widths[0] == e.hidden { // one byte per element: float8 rows with scales
		routing.Type, routing.Scales = symmem.Uint8, e.widths[1]/4
	}
	return routing
}

// idsOf chooses distinct experts for each token of a rank. If the shape has a hot expert, all
// tokens choose it.
func (e *exchangeShape) idsOf(rank int) (ids []int32) {
	random := rand.New(rand.NewPCG(uint64(rank), 1))
	for range e.counts[rank] {
		chosen := random.Perm(e.experts)[:e.topK]
		if e.hasHotExpert && !slices.Contains(chosen, 0) {
			chosen[0] = 0
		}
		for _, expert := range chosen {
			ids = append(ids, int32(expert))
		}
	}
	return ids
}

// maxSparseTraffic is maxTraffic for Dispatch and Combine.
func (e *exchangeShape) maxSparseTraffic() int64 {
	ranks := len(e.counts)
	sent, received := make([]int64, ranks), make([]int64, ranks)
	for src := range ranks {
		for ids := range slices.Chunk(e.idsOf(src), e.topK) {
			isDestination := make([]bool, ranks)
			for _, id := range ids {
				isDestination[int(id)*ranks/e.experts] = true
			}
			for dst := range ranks {
				if isDestination[dst] && dst != src {
					sent[src]++
					received[dst]++
				}
			}
		}
	}
	return e.rowBytes() * max(slices.Max(sent), slices.Max(received))
}

// writeIDs writes the ids of this rank's tokens to the end of the input.
func (r *exchangeBench) writeIDs(e *exchangeShape) error {
	ids := e.idsOf(r.Rank())
	if len(ids) == 0 {
		return nil
	}
	to := slice(r.input, exchangeMemory-routeBytes, 4*int64(len(ids)))
	s := r.DefaultStream()
	return errors.Join(s.Copy(to, symmem.Host(ids)), s.Synchronize(r.ctx))
}

// route calls Dispatch and Combine. It combines the received memory without computing experts.
func (r *exchangeBench) route(e *exchangeShape) error {
	routing := e.routing()
	count := e.counts[r.Rank()]
	rowBytes := routing.Hidden * int64(routing.Type.Size())
	words := 4 * count * int64(routing.TopK)
	dispatch := symmem.RouteArgs{
		Routing: routing, Tokens: count, Send: slice(r.input, 0, count*rowBytes),
		IDs:       slice(r.input, exchangeMemory-routeBytes, words),
		Weights:   slice(r.input, exchangeMemory-routeBytes/2, words),
		RowScales: slice(r.input, count*rowBytes, 4*count*routing.Scales),
		Recv:      slice(r.symmetric, 0, routing.Layout(r.World().Size()).Bytes),
	}
	combine := dispatch
	combine.Send = slice(r.symmetric, 0, int64(r.World().Size())*routing.MaxTokens*2*routing.Hidden)
	combine.Recv = slice(r.input, 0, count*2*routing.Hidden)
	g := r.World()
	return errors.Join(g.Dispatch(r.ctx, dispatch, nil), g.Combine(r.ctx, combine, nil))
}
