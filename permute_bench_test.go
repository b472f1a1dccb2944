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

// BenchmarkPermute measures the rearrangement of what one of four ranks receives in a dispatch, on
// one GPU:
//
//   - us-permute, us-unpermute: Permute and Unpermute
//   - permute-copy, unpermute-copy: median ratios of these times to that of a device copy that
//     reads and writes as many bytes of rows in total
//
// The calls are replayed from graphs. A group of one rank with four times as many tokens and a
// quarter of the experts stands for that rank.
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
				measurePermute(b, r, exchangeShape{exchangeModel: m, counts: []int64{4 * tokens}})
			})
		}
	}
}

// receivedIDs returns the ids of the rows that a rank with a quarter of the experts receives.
func (e *exchangeShape) receivedIDs() (ids []int32, pairs int64) {
	random, own := rand.New(rand.NewPCG(1, 1)), e.experts/4
	for range e.counts[0] {
		row, found := slices.Repeat([]int32{-1}, e.topK), int64(0)
		for k, expert := range random.Perm(e.experts)[:e.topK] {
			if expert < own {
				row[k] = int32(expert)
				found++
			}
		}
		if found > 0 {
			ids, pairs = append(ids, row...), pairs+found
		}
	}
	return ids, pairs
}

func measurePermute(b *testing.B, r *exchangeBench, e exchangeShape) {
	ids, pairs := e.receivedIDs()
	rows := int64(len(ids) / e.topK)
	a := symmem.PermuteArgs{Routing: e.routing()}
	a.Experts = e.experts / 4
	from, to := a.Layout(1), a.PermutedLayout(1, 0)
	rowBytes, computedBytes := a.Hidden*int64(a.Type.Size()), 2*a.Hidden
	copied := [2]int64{(rows + pairs) * rowBytes / 2, (rows + pairs) * computedBytes / 2}
	pool, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var source, target symmem.Memory
	var buffers []symmem.Buffer
	for _, part := range []struct {
		memory *symmem.Memory
		bytes  int64
	}{
		{&a.Dispatched, from.Bytes},
		{&a.Permuted, to.Bytes},
		{&a.Computed, to.Capacity * computedBytes},
		{&a.Returned, a.MaxTokens * computedBytes},
		{&source, copied[1]},
		{&target, copied[1]},
	} {
		buffer, err := pool.Alloc(part.bytes)
		if err != nil {
			b.Fatal(err)
		}
		*part.memory, buffers = buffer.Memory(), append(buffers, buffer)
		if err := r.DefaultStream().Fill(*part.memory, 0); err != nil {
			b.Fatal(err)
		}
	}
	s, g := r.DefaultStream(), r.World()
	err = errors.Join(
		s.Copy(slice(a.Dispatched, from.IDs, 4*int64(len(ids))), symmem.Host(ids)),
		s.Copy(slice(a.Dispatched, from.Counts, 4), symmem.Host([]int32{int32(rows)})))
	const calls = 20
	for _, call := range []func() error{
		func() error { return g.Permute(a, nil) },
		func() error { return s.Copy(slice(target, 0, copied[0]), slice(source, 0, copied[0])) },
		func() error { return g.Unpermute(a, nil) },
		func() error { return s.Copy(slice(target, 0, copied[1]), slice(source, 0, copied[1])) },
	} {
		err = errors.Join(err, r.capture(calls, call))
	}
	var times, ratios [2][]float64
	for b.Loop() {
		for i := range 2 {
			own, ownErr := r.batch(2*i, calls, 5)
			copying, copyErr := r.batch(2*i+1, calls, 5)
			err = errors.Join(err, ownErr, copyErr)
			times[i], ratios[i] = append(times[i], own), append(ratios[i], own/copying)
		}
	}
	for i, name := range []string{"permute", "unpermute"} {
		b.ReportMetric(median(times[i]), "us-"+name)
		b.ReportMetric(median(ratios[i]), name+"-copy")
	}
	err = errors.Join(err, r.closeGraphs())
	for _, buffer := range buffers {
		err = errors.Join(err, buffer.Free())
	}
	if err = errors.Join(err, pool.Close()); err != nil {
		b.Fatal(err)
	}
}
