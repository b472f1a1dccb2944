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

// simulatedRanks share the experts of a model. Each token uses a few experts, and Dispatch sends a
// row of numbers to the ranks of these experts. If a row uses two experts of rank 0, Permute makes
// two copies of it there, and Unpermute later adds up the results of the experts. The benchmark
// does the work of rank 0, in a world of one rank.
const simulatedRanks = 4

// BenchmarkPermute reports medians:
//
//   - us-permute, us-unpermute: microseconds per call
//   - permute-copy, unpermute-copy: time of a call, divided by the time of a device copy that moves
//     the same number of bytes of rows
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
				allTokens := []int64{simulatedRanks * tokensPerRank}
				measurePermute(b, r, exchangeShape{exchangeModel: model, counts: allTokens})
			})
		}
	}
}

func measurePermute(b *testing.B, r *exchangeBench, e exchangeShape) {
	b.Helper()
	ids, copies := e.receivedIDs()
	p := newPermuteBench(r, &e, int64(len(ids)/e.topK), copies)
	pool, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		b.Fatal(err)
	}

	buffers := p.allocate(b, pool)
	const callsPerGraph = 20
	// Close the graphs and free the memory even after an error.
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

// receivedIDs draws the experts of all tokens. It returns topK ids for each row that rank 0
// receives, and the number of copies that Permute makes of these rows.
func (e *exchangeShape) receivedIDs() (ids []int32, copies int64) {
	random := rand.New(rand.NewPCG(1, 1)) // arbitrary seed
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
			copies += ownCount
		}
	}

	return ids, copies
}

type permuteBench struct {
	*exchangeBench
	args         symmem.PermuteArgs
	receivedRows int64
	// sizes of the device copies that move as many bytes as Permute and Unpermute
	permuteCopyBytes, unpermuteCopyBytes int64
	copySource, copyTarget               symmem.Memory
}

func newPermuteBench(r *exchangeBench, e *exchangeShape, receivedRows, copies int64) *permuteBench {
	p := &permuteBench{
		exchangeBench: r, receivedRows: receivedRows,
		args: symmem.PermuteArgs{Routing: e.routing()},
	}
	p.args.Experts = e.experts / simulatedRanks
	receivedRowBytes := p.args.Hidden * int64(p.args.Type.Size())
	// Divide by 2, because a device copy both reads and writes its bytes.
	p.permuteCopyBytes = (receivedRows + copies) * receivedRowBytes / 2
	p.unpermuteCopyBytes = (receivedRows + copies) * p.computedRowBytes() / 2
	return p
}

func (p *permuteBench) computedRowBytes() int64 {
	const bfloat16Bytes = 2
	return bfloat16Bytes * p.args.Hidden
}

func (p *permuteBench) dispatched() symmem.DispatchLayout {
	const ranks = 1
	return p.args.Layout(ranks)
}

// allocate allocates zeroed memory. The caller must free the buffers.
func (p *permuteBench) allocate(b *testing.B, pool *symmem.Pool) (buffers []symmem.Buffer) {
	b.Helper()
	const ranks, defaultAlign = 1, 0
	permuted := p.args.PermutedLayout(ranks, defaultAlign)
	for _, part := range []struct {
		memory *symmem.Memory
		bytes  int64
	}{
		{memory: &p.args.Dispatched, bytes: p.dispatched().Bytes},
		{memory: &p.args.Permuted, bytes: permuted.Bytes},
		{memory: &p.args.Computed, bytes: permuted.Capacity * p.computedRowBytes()},
		{memory: &p.args.Returned, bytes: p.args.MaxTokens * p.computedRowBytes()},
		// Device copies are at most as large as the one for Unpermute.
		{memory: &p.copySource, bytes: p.unpermuteCopyBytes},
		{memory: &p.copyTarget, bytes: p.unpermuteCopyBytes},
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
	layout := p.dispatched()
	idWords := slice(p.args.Dispatched, layout.IDs, wordBytes*int64(len(ids)))
	countWord := slice(p.args.Dispatched, layout.Counts, wordBytes)
	s := p.DefaultStream()
	idsErr := s.Copy(idWords, symmem.Host(ids))
	countErr := s.Copy(countWord, symmem.Host([]int32{int32(p.receivedRows)}))
	return errors.Join(idsErr, countErr)
}

// captureGraphs captures each operation and its device copy in separate graphs.
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
	operations := []string{"permute", "unpermute"}
	times := make([][]float64, len(operations))
	ratios := make([][]float64, len(operations))
	const replays = 5
	for b.Loop() {
		for i := range operations {
			graph := 2 * i // the next graph is the device copy
			callTime, callErr := r.batch(graph, callsPerGraph, replays)
			copyTime, copyErr := r.batch(graph+1, callsPerGraph, replays)
			err = errors.Join(err, callErr, copyErr)
			times[i] = append(times[i], callTime)
			ratios[i] = append(ratios[i], callTime/copyTime)
		}
	}

	for i, operation := range operations {
		b.ReportMetric(median(times[i]), "us-"+operation)
		b.ReportMetric(median(ratios[i]), operation+"-copy")
	}

	return err
}
