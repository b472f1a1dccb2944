package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem"
)

// In a mixture-of-experts model, each rank owns some of the experts, and each token uses topK
// experts. Dispatch sends the row of a token to the ranks of its experts. On each of these ranks,
// Permute makes one copy of the row per expert, and Unpermute adds up the results. The benchmark
// runs only rank 0 of simulatedRanks, and writes the ids that Dispatch would have sent.
const simulatedRanks = 4

// The graphs of a permuteBench, in the order of captureGraphs.
const (
	permuteGraph = iota
	permuteCopyGraph
	unpermuteGraph
	unpermuteCopyGraph
)

// BenchmarkPermute reports medians:
//
//   - us-permute, us-unpermute: microseconds per call
//   - permute-copy, unpermute-copy: ratio of the time of a call to that of a device copy which
//     reads and writes as many bytes
func BenchmarkPermute(b *testing.B) {
	skipOnHost(b, "it measures a GPU")
	runtimes, err := symmem.OpenLocal(b.Context(), 1, symmem.Options{Backend: "nccl"})
	if err != nil {
		b.Fatal(err)
	}

	r := &exchangeBench{Runtime: runtimes[0], ctx: context.WithoutCancel(b.Context())}
	b.Cleanup(func() {
		symmem.FreeLive(r.Runtime)
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	for _, model := range exchangeModels {
		for _, tokensPerRank := range []int64{1, 8, 32, 128, 1024, 4096} {
			b.Run(fmt.Sprintf("%s/tokens=%d", model.name, tokensPerRank), func(b *testing.B) {
				allTokens := simulatedRanks * tokensPerRank
				measurePermute(b, r, &exchangeShape{
					exchangeModel: model, counts: []int64{allTokens}, // in a world of one rank
				})
			})
		}
	}
}

func measurePermute(b *testing.B, r *exchangeBench, shape *exchangeShape) {
	b.Helper()
	ids, permutedRows := shape.receivedIDs()
	receivedRows := int64(len(ids) / shape.topK)
	p := newPermuteBench(r, shape, receivedRows, permutedRows)
	pool, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		b.Fatal(err)
	}

	const callsPerGraph = 20
	buffers := p.allocate(b, pool)
	// After an error, continue, because the graphs and buffers must be released.
	writeErr := p.writeDispatched(ids)
	captureErr := p.captureGraphs(callsPerGraph)
	measureErr := measureReplays(b, r, callsPerGraph)
	closeErr := r.closeGraphs()
	err = errors.Join(writeErr, captureErr, measureErr, closeErr)
	for _, buffer := range buffers {
		freeErr := buffer.Free()
		err = errors.Join(err, freeErr)
	}

	poolErr := pool.Close()
	if err = errors.Join(err, poolErr); err != nil {
		b.Fatal(err)
	}
}

// receivedIDs draws topK experts for each token. It returns the ids of the tokens that rank 0
// receives, and the number of rows after Permute.
func (e *exchangeShape) receivedIDs() (ids []int32, permutedRows int64) {
	const seed = 1 // arbitrary
	random := rand.New(rand.NewPCG(seed, seed))
	const otherRanksExpert = int32(-1)
	ownExperts := e.experts / simulatedRanks
	allTokens := e.counts[0]
	for range allTokens {
		row := slices.Repeat([]int32{otherRanksExpert}, e.topK)
		ownCount := int64(0)
		for k, expert := range random.Perm(e.experts)[:e.topK] {
			if expert < ownExperts {
				row[k] = int32(expert)
				ownCount++
			}
		}

		if ownCount > 0 { // Dispatch sends the row to rank 0
			ids = append(ids, row...)
			permutedRows += ownCount
		}
	}

	return ids, permutedRows
}

type permuteBench struct {
	*exchangeBench
	args         symmem.PermuteArgs
	receivedRows int64
	// Device copies of these sizes read and write as many bytes as Permute and Unpermute.
	permuteCopyBytes, unpermuteCopyBytes int64
	copySource, copyTarget               symmem.Memory
}

func newPermuteBench(
	r *exchangeBench, shape *exchangeShape, receivedRows, permutedRows int64,
) *permuteBench {
	p := &permuteBench{
		exchangeBench: r, receivedRows: receivedRows,
		args: symmem.PermuteArgs{Routing: shape.routing()},
	}
	p.args.Experts = shape.experts / simulatedRanks
	receivedRowBytes := p.args.Hidden * int64(p.args.Type.Size())
	// A call accesses each row once, but a device copy accesses each of its bytes twice.
	rowsAccessed := receivedRows + permutedRows
	p.permuteCopyBytes = rowsAccessed * receivedRowBytes / 2
	p.unpermuteCopyBytes = rowsAccessed * p.computedRowBytes() / 2
	return p
}

func (p *permuteBench) computedRowBytes() int64 {
	const bfloat16Bytes = 2
	return bfloat16Bytes * p.args.Hidden
}

func (p *permuteBench) dispatchLayout() symmem.DispatchLayout {
	return p.args.Layout(p.World().Size())
}

// allocate allocates zeroed memory. The caller must free the buffers.
func (p *permuteBench) allocate(b *testing.B, pool *symmem.Pool) (buffers []symmem.Buffer) {
	b.Helper()
	const defaultAlign = 0
	permuted := p.args.PermutedLayout(p.World().Size(), defaultAlign)
	copyBytes := max(p.permuteCopyBytes, p.unpermuteCopyBytes)
	for _, part := range []struct {
		memory *symmem.Memory
		bytes  int64
	}{
		{memory: &p.args.Dispatched, bytes: p.dispatchLayout().Bytes},
		{memory: &p.args.Permuted, bytes: permuted.Bytes},
		{memory: &p.args.Computed, bytes: permuted.Capacity * p.computedRowBytes()},
		{memory: &p.args.Returned, bytes: p.args.MaxTokens * p.computedRowBytes()},
		{memory: &p.copySource, bytes: copyBytes},
		{memory: &p.copyTarget, bytes: copyBytes},
	} {
		buffer, err := pool.Alloc(part.bytes)
		if err != nil {
			b.Fatal(err)
		}

		*part.memory = buffer.Memory()
		buffers = append(buffers, buffer)
		if err := p.DefaultStream().Fill(*part.memory, 0); err != nil {
			b.Fatal(err)
		}
	}

	return buffers
}

// writeDispatched writes the ids and the row count that Dispatch would have written.
func (p *permuteBench) writeDispatched(ids []int32) error {
	const wordBytes = 4 // of an id or a number of rows
	layout := p.dispatchLayout()
	idWords := slice(p.args.Dispatched, layout.IDs, wordBytes*int64(len(ids)))
	countWord := slice(p.args.Dispatched, layout.Counts, wordBytes)
	s := p.DefaultStream()
	idsErr := s.Copy(idWords, symmem.Host(ids))
	countErr := s.Copy(countWord, symmem.Host([]int32{int32(p.receivedRows)}))
	return errors.Join(idsErr, countErr)
}

// captureGraphs captures callsPerGraph repetitions of each call in a separate graph.
func (p *permuteBench) captureGraphs(callsPerGraph int) (err error) {
	for _, call := range []func() error{
		func() error { return p.World().Permute(p.args, nil) },
		func() error { return p.copyOnDevice(p.permuteCopyBytes) },
		func() error { return p.World().Unpermute(p.args, nil) },
		func() error { return p.copyOnDevice(p.unpermuteCopyBytes) },
	} {
		captureErr := p.capture(callsPerGraph, call)
		err = errors.Join(err, captureErr)
	}

	return err
}

func (p *permuteBench) copyOnDevice(bytes int64) error {
	return p.DefaultStream().Copy(slice(p.copyTarget, 0, bytes), slice(p.copySource, 0, bytes))
}

func measureReplays(b *testing.B, r *exchangeBench, callsPerGraph int) (err error) {
	b.Helper()
	type operation struct {
		name                 string
		callGraph, copyGraph int
		callMicros, ratios   []float64
	}
	operations := []*operation{
		{name: "permute", callGraph: permuteGraph, copyGraph: permuteCopyGraph},
		{name: "unpermute", callGraph: unpermuteGraph, copyGraph: unpermuteCopyGraph},
	}
	const replays = 5
	for b.Loop() {
		for _, o := range operations {
			callMicros, callErr := r.batch(o.callGraph, callsPerGraph, replays)
			copyMicros, copyErr := r.batch(o.copyGraph, callsPerGraph, replays)
			err = errors.Join(err, callErr, copyErr)
			o.callMicros = append(o.callMicros, callMicros)
			o.ratios = append(o.ratios, callMicros/copyMicros)
		}
	}

	for _, o := range operations {
		b.ReportMetric(median(o.callMicros), "us-"+o.name)
		b.ReportMetric(median(o.ratios), o.name+"-copy")
	}

	return err
}
