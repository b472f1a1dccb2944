package symmem_test

import (
	"math/rand/v2"
	"slices"

	"symmem"
)

// exchangeBench.input begins with rows and their scales. It ends with expert ids and weights.
const (
	maxIDBytes     = 512 << 10
	maxWeightBytes = maxIDBytes // one weight per id
	idsOffset      = weightsOffset - maxIDBytes
	weightsOffset  = exchangeMemory - maxWeightBytes
)

func (e *exchangeShape) routing() symmem.Routing {
	routing := symmem.Routing{
		Experts: e.experts, TopK: e.topK, MaxTokens: slices.Max(e.counts), Hidden: e.hidden,
		Type: symmem.BFloat16,
	}
	rowBytes := e.widths[0]
	if isFloat8 := rowBytes == e.hidden; isFloat8 {
		const scaleBytes = 4
		rowScaleBytes := e.widths[1]
		routing.Type, routing.Scales = symmem.Uint8, rowScaleBytes/scaleBytes
	}

	return routing
}

// idsOf draws distinct experts for each token of a rank. The result depends only on the shape and
// the rank.
func (e *exchangeShape) idsOf(rank int) (ids []int32) {
	const hotExpert, arbitrary = 0, 1
	random := rand.New(rand.NewPCG(uint64(rank), arbitrary))
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

// maxSparseTraffic returns the bytes that one rank's rows take to the other ranks and back, for the
// rank that sends or receives the most rows in Dispatch.
func (e *exchangeShape) maxSparseTraffic() int64 {
	ranks := len(e.counts)
	sentRows, receivedRows := make([]int64, ranks), make([]int64, ranks)
	for src := range ranks {
		for ids := range slices.Chunk(e.idsOf(src), e.topK) {
			isOwner := make([]bool, ranks)
			for _, id := range ids {
				owner := int(id) * ranks / e.experts // ranks own equal shares of the experts
				isOwner[owner] = true
			}

			isOwner[src] = false // a rank's rows for itself are no traffic
			for dst := range ranks {
				if isOwner[dst] {
					sentRows[src]++
					receivedRows[dst]++
				}
			}
		}
	}

	return e.rowBytes() * max(slices.Max(sentRows), slices.Max(receivedRows))
}

func (r *exchangeBench) writeIDs(e *exchangeShape) error {
	ids := e.idsOf(r.Rank())
	if len(ids) == 0 {
		return nil
	}

	const idBytes = 4
	target := slice(r.input, idsOffset, idBytes*int64(len(ids)))
	s := r.DefaultStream()
	if err := s.Copy(target, symmem.Host(ids)); err != nil {
		return err
	}

	return s.Synchronize(r.ctx)
}

// route calls Dispatch and Combine, without the work of the experts in between.
func (r *exchangeBench) route(e *exchangeShape) error {
	g := r.World()
	routing := e.routing()
	tokens := e.counts[r.Rank()]
	rowsBytes := tokens * routing.Hidden * int64(routing.Type.Size())
	const wordBytes = 4 // of an id, a weight or a scale
	idsBytes := wordBytes * tokens * int64(routing.TopK)
	dispatch := symmem.RouteArgs{
		Routing: routing, Tokens: tokens,
		Send:      slice(r.input, 0, rowsBytes),
		IDs:       slice(r.input, idsOffset, idsBytes),
		Weights:   slice(r.input, weightsOffset, idsBytes),
		RowScales: slice(r.input, rowsBytes, wordBytes*tokens*routing.Scales),
		Recv:      slice(r.symmetric, 0, routing.Layout(g.Size()).Bytes),
	}
	const bfloat16Bytes = 2 // Combine always sends bfloat16
	combinedRowBytes := routing.Hidden * bfloat16Bytes
	combine := dispatch
	combine.Send = slice(r.symmetric, 0, int64(g.Size())*routing.MaxTokens*combinedRowBytes)
	combine.Recv = slice(r.input, 0, tokens*combinedRowBytes)
	if err := g.Dispatch(r.ctx, dispatch, nil); err != nil {
		return err
	}

	return g.Combine(r.ctx, combine, nil)
}
