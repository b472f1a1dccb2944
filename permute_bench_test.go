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

// BenchmarkPermute measures Permute and Unpermute of the rows that one of four ranks receives in a
// dispatch. It needs only one GPU: a group of one rank with four times the tokens and a quarter of
// the experts stands for the rank. The calls are replayed from graphs. The metrics are medians:
//
//   - us-permute, us-unpermute: time of a call in microseconds
//   - permute-copy, unpermute-copy: ratio of this time to the time of a device copy that reads and
//     writes the same total number of bytes of rows
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
	for _, m := range exchangeModels {
		for _, tokens := range []int64{1, 8, 32, 128, 1024, 4096} {
			b.Run(fmt.Sprintf("%s/tokens=%d", m.name, tokens), func(b *testing.B) {
				received := []int64{simulatedRanks * tokens}
				measurePermute(b, r, exchangeShape{exchangeModel: m, counts: received})
			})
		}
	}
}

// simulatedRanks is the number of ranks in the simulated group.
const simulatedRanks = 4

// receivedIDs draws the expert ids of all tokens, and returns the ids of the rows that the
// simulated rank receives: topK ids per row, with -1 for experts of other ranks. pairs is the
// number of ids that are not -1. After Permute, each of them has a row.
func (e *exchangeShape) receivedIDs() (ids []int32, pairs int64) {
	random := rand.New(rand.NewPCG(1, 1)) // the same ids in each run
	ownExperts := e.experts / simulatedRanks
	for range e.counts[0] { // tokens of the only rank
		row, found := slices.Repeat([]int32{-1}, e.topK), int64(0)
		for k, expert := range random.Perm(e.experts)[:e.topK] {
			if expert < ownExperts {
				row[k] = int32(expert)
				found++
			}
		}

		if found > 0 { // dispatch sends the rank no other rows
			ids = append(ids, row...)
			pairs += found
		}
	}

	return ids, pairs
}

// measurePermute runs the sub-benchmark of a shape. It captures four graphs: Permute, the device
// copy to compare it with, Unpermute, and its copy.
func measurePermute(b *testing.B, r *exchangeBench, e exchangeShape) {
	ids, pairs := e.receivedIDs()
	rows := int64(len(ids) / e.topK)
	a := symmem.PermuteArgs{Routing: e.routing()}
	a.Experts = e.experts / simulatedRanks
	const ranks, defaultAlign = 1, 0
	dispatched, permuted := a.Layout(ranks), a.PermutedLayout(ranks, defaultAlign)
	const bfloat16Bytes = 2 // of computed elements
	rowBytes, computedBytes := a.Hidden*int64(a.Type.Size()), bfloat16Bytes*a.Hidden
	// Permute reads rows and writes pairs, or the reverse. A copy of n bytes reads and writes n.
	permuteCopy, unpermuteCopy := (rows+pairs)*rowBytes/2, (rows+pairs)*computedBytes/2
	pool, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		b.Fatal(err)
	}

	var source, target symmem.Memory // of the copies; unpermuteCopy is at least permuteCopy
	var buffers []symmem.Buffer
	for _, part := range []struct {
		memory *symmem.Memory
		bytes  int64
	}{
		{&a.Dispatched, dispatched.Bytes},
		{&a.Permuted, permuted.Bytes},
		{&a.Computed, permuted.Capacity * computedBytes},
		{&a.Returned, a.MaxTokens * computedBytes},
		{&source, unpermuteCopy},
		{&target, unpermuteCopy},
	} {
		buffer, err := pool.Alloc(part.bytes)
		if err != nil {
			b.Fatal(err)
		}

		*part.memory = buffer.Memory()
		buffers = append(buffers, buffer)
		if err := r.DefaultStream().Fill(*part.memory, 0); err != nil {
			b.Fatal(err)
		}
	}

	s, g := r.DefaultStream(), r.World()
	const wordBytes = 4 // of an id or a count
	idsErr := s.Copy(
		slice(a.Dispatched, dispatched.IDs, wordBytes*int64(len(ids))), symmem.Host(ids))
	countErr := s.Copy(
		slice(a.Dispatched, dispatched.Counts, wordBytes), symmem.Host([]int32{int32(rows)}))
	err = errors.Join(idsErr, countErr) // and all later errors, which are checked at the end
	const calls = 20                    // in a graph
	for _, call := range []func() error{
		func() error { return g.Permute(a, nil) },
		func() error { return s.Copy(slice(target, 0, permuteCopy), slice(source, 0, permuteCopy)) },
		func() error { return g.Unpermute(a, nil) },
		func() error {
			return s.Copy(slice(target, 0, unpermuteCopy), slice(source, 0, unpermuteCopy))
		},
	} {
		captureErr := r.capture(calls, call)
		err = errors.Join(err, captureErr)
	}

	measureErr := measureReplays(b, r, calls)
	closeErr := r.closeGraphs()
	err = errors.Join(err, measureErr, closeErr)
	for _, buffer := range buffers {
		freeErr := buffer.Free()
		err = errors.Join(err, freeErr)
	}

	poolErr := pool.Close()
	if err = errors.Join(err, poolErr); err != nil {
		b.Fatal(err)
	}
}

// measureReplays replays the four graphs of measurePermute, which have the given number of calls,
// and reports the metrics of BenchmarkPermute.
func measureReplays(b *testing.B, r *exchangeBench, calls int) (err error) {
	var times, ratios [2][]float64 // of Permute and of Unpermute
	const replays = 5
	for b.Loop() {
		for i := range 2 { // graphs 0 and 1 belong to Permute, and graphs 2 and 3 to Unpermute
			callTime, callErr := r.batch(2*i, calls, replays)
			copyTime, copyErr := r.batch(2*i+1, calls, replays)
			err = errors.Join(err, callErr, copyErr)
			times[i] = append(times[i], callTime)
			ratios[i] = append(ratios[i], callTime/copyTime)
		}
	}

	for i, name := range []string{"permute", "unpermute"} {
		b.ReportMetric(median(times[i]), "us-"+name)
		b.ReportMetric(median(ratios[i]), name+"-copy")
	}

	return err
}
