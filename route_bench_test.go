package symmem_test

import (
	"math/rand/v2"
	"slices"

	"symmem"
)

// routeBytes is the size of the ids and weights, each in one half, at the end of the input.
const routeBytes = 1 << 20

func (e *exchangeShape) routing() symmem.Routing {
	routing := symmem.Routing{
		Experts: e.experts, TopK: e.topK, MaxTokens: slices.Max(e.counts), Hidden: e.hidden,
		Type: symmem.BFloat16,
	}
	isFloat8 := e.widths[0] == e.hidden // one byte per element
	if isFloat8 {
		const scaleBytes = 4
		routing.Type, routing.Scales = symmem.Uint8, e.widths[1]/scaleBytes
	}

	return routing
}

// idsOf chooses distinct experts for each token of a rank. Each call for a rank
// returns the same ids.
func (e *exchangeShape) idsOf(rank int) (ids []int32) {
	const hotExpert = 0
	random := rand.New(rand.NewPCG(uint64(rank), 1))
	for range e.counts[rank] {
		chosen := random.Perm(e.experts)[:e.topK]
		if e.hasHotExpert && !slices.Contains(chosen, hotExpert) {
			chosen[0] = hotExpert
		}

		for _, expert := range chosen {
			ids = append(ids, int32(expert))
		}
	}

	return ids
}

// maxSparseTraffic returns the largest number of bytes that a rank sends or receives in Dispatch
// and Combine. A row travels once to each rank that owns one of its experts, and back.
func (e *exchangeShape) maxSparseTraffic() int64 {
	ranks := len(e.counts)
	sent, received := make([]int64, ranks), make([]int64, ranks) // rows by rank
	for src := range ranks {
		for ids := range slices.Chunk(e.idsOf(src), e.topK) {
			isDestination := make([]bool, ranks)
			for _, id := range ids {
				owner := int(id) * ranks / e.experts
				isDestination[owner] = true
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

func (r *exchangeBench) writeIDs(e *exchangeShape) error {
	ids := e.idsOf(r.Rank())
	if len(ids) == 0 {
		return nil
	}

	const idBytes = 4
	to := slice(r.input, exchangeMemory-routeBytes, idBytes*int64(len(ids)))
	s := r.DefaultStream()
	if err := s.Copy(to, symmem.Host(ids)); err != nil {
		return err
	}

	return s.Synchronize(r.ctx)
}

// route calls Dispatch and Combine, without the experts' work in between.
func (r *exchangeBench) route(e *exchangeShape) error {
	routing := e.routing()
	count := e.counts[r.Rank()]
	rowBytes := routing.Hidden * int64(routing.Type.Size())
	const wordBytes = 4 // of an id, a weight or a scale
	perTokenBytes := wordBytes * count * int64(routing.TopK)
	dispatch := symmem.RouteArgs{
		Routing: routing, Tokens: count, Send: slice(r.input, 0, count*rowBytes),
		IDs:       slice(r.input, exchangeMemory-routeBytes, perTokenBytes),
		Weights:   slice(r.input, exchangeMemory-routeBytes/2, perTokenBytes),
		RowScales: slice(r.input, count*rowBytes, wordBytes*count*routing.Scales),
		Recv:      slice(r.symmetric, 0, routing.Layout(r.World().Size()).Bytes),
	}
	const bfloat16Bytes = 2 // Combine always sends bfloat16
	combinedBytes := routing.Hidden * bfloat16Bytes
	combine := dispatch
	combine.Send = slice(r.symmetric, 0, int64(r.World().Size())*routing.MaxTokens*combinedBytes)
	combine.Recv = slice(r.input, 0, count*combinedBytes)
	g := r.World()
	if err := g.Dispatch(r.ctx, dispatch, nil); err != nil {
		return err
	}

	return g.Combine(r.ctx, combine, nil)
}
