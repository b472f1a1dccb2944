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

// In a mixture of experts, a few of many experts process each token. Suppose that each of four
// ranks has 1024 tokens, and owns 64 of 256 experts. Rank 0 owns the experts 0 to 63. Dispatch
// sends it one row of numbers for each token that has one of these experts.
//
// Each received row has the ids of eight experts. The id -1 stands for an expert of another rank. A
// row with the ids 3, -1, 17, -1, -1, -1, -1, -1 has two experts here, so Permute makes two copies
// of it. Later, Unpermute reads a computed row for each copy, and writes one sum for the row.
//
// The benchmark needs only one GPU, which does the work of rank 0. To symmem, it is the only rank
// of a group, with 64 experts and up to 4096 tokens.

// simulatedRanks is the number of ranks in the example, of which the benchmark runs rank 0.
const simulatedRanks = 4

// BenchmarkPermute measures Permute and Unpermute, and copies of the same size for comparison. The
// metrics are medians:
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
	for _, model := range exchangeModels {
		for _, tokensPerRank := range []int64{1, 8, 32, 128, 1024, 4096} {
			b.Run(fmt.Sprintf("%s/tokens=%d", model.name, tokensPerRank), func(b *testing.B) {
				allTokens := []int64{simulatedRanks * tokensPerRank} // of the only rank
				measurePermute(b, r, exchangeShape{exchangeModel: model, counts: allTokens})
			})
		}
	}
}

// measurePermute runs the sub-benchmark of a model and a number of tokens.
func measurePermute(b *testing.B, r *exchangeBench, e exchangeShape) {
	b.Helper()
	ids, copies := e.receivedIDs()
	c := newPermuteBench(r, &e, int64(len(ids)/e.topK), copies)
	pool, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		b.Fatal(err)
	}

	buffers := c.allocate(b, pool)
	const callsPerGraph = 20
	// After an error, the later steps must still close the graphs and free the memory.
	writeErr := c.writeDispatched(ids)
	captureErr := c.captureGraphs(callsPerGraph)
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

// receivedIDs draws the expert ids of all tokens. It returns the ids of the rows that rank 0
// receives, topK for each row, and the number of copies that Permute makes of these rows.
func (e *exchangeShape) receivedIDs() (ids []int32, copies int64) {
	random := rand.New(rand.NewPCG(1, 1)) // the same ids in each run
	ownExperts := e.experts / simulatedRanks
	for range e.counts[0] { // all tokens
		row := slices.Repeat([]int32{-1}, e.topK)
		found := int64(0) // experts of rank 0
		for k, expert := range random.Perm(e.experts)[:e.topK] {
			if expert < ownExperts {
				row[k] = int32(expert)
				found++
			}
		}

		if found > 0 { // otherwise Dispatch does not send the row to rank 0
			ids = append(ids, row...)
			copies += found
		}
	}

	return ids, copies
}

// permuteBench holds the sizes and the memory of a sub-benchmark.
type permuteBench struct {
	*exchangeBench
	args symmem.PermuteArgs
	rows int64 // received rows
	// A device copy of this many bytes reads and writes as much as Permute or Unpermute.
	permuteBytes, unpermuteBytes int64
	source, target               symmem.Memory // of the device copies
}

// newPermuteBench returns a sub-benchmark with the given numbers of received rows and their copies.
// It has no memory yet.
func newPermuteBench(r *exchangeBench, e *exchangeShape, rows, copies int64) *permuteBench {
	c := &permuteBench{exchangeBench: r, rows: rows, args: symmem.PermuteArgs{Routing: e.routing()}}
	c.args.Experts = e.experts / simulatedRanks
	receivedBytes := c.args.Hidden * int64(c.args.Type.Size()) // of a received row
	// Permute reads each received row and writes the copies. Unpermute reads a computed row for each
	// copy and writes a sum for each received row. A device copy of n bytes reads n and writes n.
	c.permuteBytes = (rows + copies) * receivedBytes / 2
	c.unpermuteBytes = (rows + copies) * c.computedBytes() / 2
	return c
}

// computedBytes returns the size of a computed row, or of a sum of such rows.
func (c *permuteBench) computedBytes() int64 {
	const bfloat16Bytes = 2
	return bfloat16Bytes * c.args.Hidden
}

// dispatched returns the layout of the memory that Dispatch would have written.
func (c *permuteBench) dispatched() symmem.DispatchLayout {
	const ranks = 1
	return c.args.Layout(ranks)
}

// allocate allocates all memory and fills it with zeros. The caller must free the buffers.
func (c *permuteBench) allocate(b *testing.B, pool *symmem.Pool) (buffers []symmem.Buffer) {
	b.Helper()
	const ranks, defaultAlign = 1, 0
	permuted := c.args.PermutedLayout(ranks, defaultAlign)
	for _, part := range []struct {
		memory *symmem.Memory
		bytes  int64
	}{
		{memory: &c.args.Dispatched, bytes: c.dispatched().Bytes},
		{memory: &c.args.Permuted, bytes: permuted.Bytes},
		{memory: &c.args.Computed, bytes: permuted.Capacity * c.computedBytes()},
		{memory: &c.args.Returned, bytes: c.args.MaxTokens * c.computedBytes()},
		// Both device copies use source and target. That of Unpermute is at least as large.
		{memory: &c.source, bytes: c.unpermuteBytes},
		{memory: &c.target, bytes: c.unpermuteBytes},
	} {
		buffer, err := pool.Alloc(part.bytes)
		if err != nil {
			b.Fatal(err)
		}

		*part.memory = buffer.Memory()
		buffers = append(buffers, buffer)
		if err := c.DefaultStream().Fill(*part.memory, 0); err != nil {
			b.Fatal(err)
		}
	}

	return buffers
}

// writeDispatched writes the ids and the number of the received rows, as Dispatch does.
func (c *permuteBench) writeDispatched(ids []int32) error {
	const wordBytes = 4 // of an id or a number of rows
	layout := c.dispatched()
	idWords := slice(c.args.Dispatched, layout.IDs, wordBytes*int64(len(ids)))
	countWord := slice(c.args.Dispatched, layout.Counts, wordBytes)
	s := c.DefaultStream()
	idsErr := s.Copy(idWords, symmem.Host(ids))
	countErr := s.Copy(countWord, symmem.Host([]int32{int32(c.rows)}))
	return errors.Join(idsErr, countErr)
}

// captureGraphs captures four graphs: Permute, its device copy, Unpermute, and its device copy.
func (c *permuteBench) captureGraphs(callsPerGraph int) (err error) {
	for _, call := range []func() error{
		func() error { return c.World().Permute(c.args, nil) },
		func() error { return c.copyOnDevice(c.permuteBytes) },
		func() error { return c.World().Unpermute(c.args, nil) },
		func() error { return c.copyOnDevice(c.unpermuteBytes) },
	} {
		captureErr := c.capture(callsPerGraph, call)
		err = errors.Join(err, captureErr)
	}

	return err
}

// copyOnDevice queues a device copy of the given size.
func (c *permuteBench) copyOnDevice(bytes int64) error {
	return c.DefaultStream().Copy(slice(c.target, 0, bytes), slice(c.source, 0, bytes))
}

// measureReplays replays the graphs of captureGraphs and reports the metrics of BenchmarkPermute.
func measureReplays(b *testing.B, r *exchangeBench, callsPerGraph int) (err error) {
	b.Helper()
	operations := []string{"permute", "unpermute"}
	times := make([][]float64, len(operations))
	ratios := make([][]float64, len(operations))
	const replays = 5
	for b.Loop() {
		for i := range operations {
			graph := 2 * i // followed by the graph of its device copy
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
