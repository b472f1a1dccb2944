package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"symmem"
	"symmem/internal/ranktest"
)

// BenchmarkExchange measures the exchange in a mixture-of-experts layer. An exchange consists of
// two calls: a dispatch, which gathers hidden states, scales, weights and expert numbers, and a
// combine, which reduce-scatters bfloat16.
//
//   - us-rows: one launch each, into and from symmetric memory
//   - us-loose: the same without symmetric memory
//   - us-sparse: Dispatch and Combine, with experts chosen uniformly
//   - us-nccl: what vLLM does by default with NCCL: grouped all-gathers and a reduce-scatter
//     or, if ranks have different numbers of tokens, grouped broadcasts and reductions
//   - ratio: us-nccl / us-rows, as the median over the turns
//   - sparse-ratio: us-rows / us-sparse, likewise
//   - sparse-nccl: us-nccl / us-sparse, likewise
//   - limit: us-rows divided by a lower bound on the time, which consists of two barriers and
//     the transfer of the bytes at the speed measured when a rank pushes 64 MiB to its peers
//   - sparse-limit: the same for us-sparse
//
// The calls are replayed from graphs. Times are those of the slowest rank. The benchmark uses up
// to four of the visible GPUs.
func BenchmarkExchange(b *testing.B) {
	ranks := exchangeBenches(b)
	link, barrier := measureLink(b, ranks)
	for _, m := range exchangeModels {
		for _, share := range []string{"uniform", "uneven", "idle", "hot"} {
			for _, tokens := range []int64{1, 8, 32, 128, 1024, 4096} {
				b.Run(fmt.Sprintf("%s/%s/tokens=%d", m.name, share, tokens), func(b *testing.B) {
					e := exchangeShape{
						exchangeModel: m, counts: tokenCounts(share, tokens, len(ranks)),
						hasHotExpert: share == "hot",
					}
					measureExchange(b, ranks, &e, link, barrier)
				})
			}
		}
	}
}

// exchangeModel contains the sizes of the tensors in a model's dispatch, in bytes per token.
type exchangeModel struct {
	name   string
	hidden int64 // elements per token of the combine
	widths []int64
	// topK of experts are chosen for each token.
	topK, experts int
}

var exchangeModels = []exchangeModel{
	{"DeepSeek-V3", 7168, []int64{7168, 7168 / 128 * 4, 32, 32}, 8, 256},
	{"Qwen3-235B", 4096, []int64{4096, 4096 / 128 * 4, 32, 32}, 8, 128},
	{"gpt-oss", 2880, []int64{2 * 2880, 16, 16}, 4, 128},
}

type exchangeShape struct {
	exchangeModel
	counts       []int64
	hasHotExpert bool
}

func tokenCounts(share string, tokens int64, ranks int) []int64 {
	counts := slices.Repeat([]int64{tokens}, ranks)
	for r := range counts {
		if share == "uneven" {
			counts[r] = max(1, tokens*int64(r+1)/int64(ranks))
		}
	}

	if share == "idle" {
		counts[ranks-1] = 0
	}

	return counts
}

func (e *exchangeShape) tokens() (all int64) {
	for _, n := range e.counts {
		all += n
	}

	return all
}

// rowBytes returns the number of bytes that a token takes in both directions.
func (e *exchangeShape) rowBytes() int64 {
	width := 2 * e.hidden
	for _, w := range e.widths {
		width += w
	}

	return width
}

// maxTraffic returns the maximum number of bytes that a rank sends to its peers, or receives from
// them, in one exchange.
func (e *exchangeShape) maxTraffic() int64 {
	largest := slices.Max(e.counts)
	return e.rowBytes() * max(largest*int64(len(e.counts)-1), e.tokens()-slices.Min(e.counts))
}

type exchangeBench struct {
	*symmem.Runtime
	ctx context.Context
	// symmetric and loose are memory for all tensors of the largest shape.
	symmetric, loose, input symmem.Memory
	graphs                  []*symmem.Graph
}

// The implementations of an exchange, in the order of exchangeBench.graphs.
const (
	exchangeRows = iota
	exchangeLoose
	exchangeSparse
	exchangeNCCL
	exchangeVariants
)

// exchangeMemory is large enough for 4096 tokens on each of 4 ranks.
const exchangeMemory = 320 << 20

// exchangeBenches opens a rank on each GPU. It may skip the benchmark.
func exchangeBenches(b *testing.B) (ranks []*exchangeBench) {
	if os.Getenv(backendVariable) != "nccl" {
		b.Skip(fmt.Errorf("exchanges run on GPUs, with %s=nccl: %w", backendVariable,
			symmem.ErrUnsupported))
	}

	n, err := symmem.LocalRanks("nccl")
	if err != nil {
		b.Fatal(err)
	}

	if n < 2 {
		b.Skip(fmt.Errorf("exchanges need two GPUs, found %d: %w", n, symmem.ErrUnsupported))
	}

	runtimes, err := symmem.OpenLocal(b.Context(), min(n, 4), symmem.Options{
		Backend: "nccl", Check: symmem.CheckRegistration,
	})
	if err != nil {
		b.Fatal(err)
	}

	for _, rt := range runtimes {
		ranks = append(ranks, &exchangeBench{Runtime: rt, ctx: context.WithoutCancel(b.Context())})
	}

	b.Cleanup(func() {
		onEachExchange(b, ranks, func(r *exchangeBench) error {
			symmem.FreeLive(r.Runtime)
			return r.Close()
		})
	})
	onEachExchange(b, ranks, (*exchangeBench).allocate)
	return ranks
}

func onEachExchange(b *testing.B, ranks []*exchangeBench, f func(*exchangeBench) error) {
	b.Helper()
	err := ranktest.Run(len(ranks), func(i int) error {
		err := f(ranks[i])
		if err != nil {
			ranks[i].World().Abort()
		}

		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

func (r *exchangeBench) allocate() error {
	shared, err := r.NewPool(symmem.PoolOptions{Domain: r.World(), FirstSegment: exchangeMemory})
	if err != nil {
		return err
	}

	unshared, err := r.NewPool(symmem.PoolOptions{FirstSegment: exchangeMemory})
	if err != nil {
		return err
	}

	for dst, pool := range map[*symmem.Memory]*symmem.Pool{
		&r.symmetric: shared, &r.loose: unshared, &r.input: unshared,
	} {
		buffer, err := pool.Alloc(exchangeMemory)
		if err != nil {
			return err
		}

		*dst = buffer.Memory()
		if err := r.DefaultStream().Fill(*dst, 0); err != nil {
			return err
		}
	}

	return errors.Join(shared.Register(r.ctx, r.World()), r.DefaultStream().Synchronize(r.ctx))
}

func (r *exchangeBench) pair(e *exchangeShape, implementation int) error {
	if implementation == exchangeSparse {
		return r.route(e)
	}

	whole := r.symmetric
	if implementation == exchangeLoose {
		whole = r.loose
	}

	even := slices.Min(e.counts) == slices.Max(e.counts) && implementation == exchangeNCCL
	var list []symmem.Call
	in, out := int64(0), int64(0)
	for _, width := range e.widths {
		ownBytes := e.counts[r.Rank()] * width
		counts := slices.Clone(e.counts)
		for i := range counts {
			counts[i] *= width
		}

		call := symmem.Call{
			Operation: symmem.OpAllGatherV, Type: symmem.Uint8, Send: slice(r.input, in, ownBytes),
			Recv: slice(whole, out, e.tokens()*width), Splits: &symmem.Splits{RecvCounts: counts},
		}
		if even {
			call.Operation, call.Splits, call.Count = symmem.OpAllGather, nil, ownBytes
		}

		in, out = in+ownBytes, out+e.tokens()*width
		list = append(list, call)
	}

	dispatch := list[0]
	dispatch.More, dispatch.Path = list[1:], symmem.PathDirect
	counts := slices.Clone(e.counts)
	for i := range counts {
		counts[i] *= e.hidden
	}

	combine := symmem.Call{
		Operation: symmem.OpReduceScatterV, Type: symmem.BFloat16, Op: symmem.Sum,
		Send: slice(whole, 0, 2*e.tokens()*e.hidden), Recv: slice(r.input, 0, 2*counts[r.Rank()]),
		Splits: &symmem.Splits{SendCounts: counts}, Path: symmem.PathDirect,
	}
	if even {
		combine.Operation, combine.Splits, combine.Count = symmem.OpReduceScatter, nil, counts[0]
	}

	if implementation == exchangeNCCL {
		dispatch.Path, combine.Path = symmem.PathPlain, symmem.PathPlain
	}

	return errors.Join(r.Interop().Do(r.ctx, r.World(), dispatch, nil),
		r.Interop().Do(r.ctx, r.World(), combine, nil))
}

// slice returns a range of memory, or the zero Memory if the range is empty.
func slice(m symmem.Memory, offset, bytes int64) symmem.Memory {
	if bytes == 0 {
		return symmem.Memory{}
	}

	part, err := m.Slice(offset, bytes)
	if err != nil {
		panic(err)
	}

	return part
}

func (r *exchangeBench) capture(calls int, call func() error) error {
	s := r.DefaultStream()
	if err := errors.Join(call(), s.Synchronize(r.ctx), s.BeginCapture()); err != nil {
		return err
	}

	var failed error
	for range calls {
		failed = errors.Join(failed, call())
	}

	graph, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return err
	}

	r.graphs = append(r.graphs, graph)
	return nil
}

// batch replays a graph after a barrier and returns the time per call in microseconds.
func (r *exchangeBench) batch(graph, calls, replays int) (float64, error) {
	s := r.DefaultStream()
	if err := errors.Join(r.World().Barrier(r.ctx, nil), s.Synchronize(r.ctx)); err != nil {
		return 0, err
	}

	begin := time.Now()
	for range replays {
		if err := r.graphs[graph].Launch(s); err != nil {
			return 0, err
		}
	}

	err := s.Synchronize(r.ctx)
	return float64(time.Since(begin).Nanoseconds()) / 1e3 / float64(calls*replays), err
}

func slowestBatch(b *testing.B, ranks []*exchangeBench, graph, calls, replays int) float64 {
	b.Helper()
	times := make([]float64, len(ranks))
	onEachExchange(b, ranks, func(r *exchangeBench) (err error) {
		times[r.Rank()], err = r.batch(graph, calls, replays)
		return err
	})
	return slices.Max(times)
}

func (r *exchangeBench) closeGraphs() error {
	errs := []error{r.DefaultStream().Synchronize(r.ctx)}
	for _, g := range r.graphs {
		errs = append(errs, g.Close())
	}

	r.graphs = nil
	return errors.Join(errs...)
}

// measureLink returns the speed at which a rank pushes 64 MiB to its peers, in bytes per
// microsecond, and the time of a barrier.
func measureLink(b *testing.B, ranks []*exchangeBench) (link, barrier float64) {
	const bytes, calls, replays = 64 << 20, 4, 5
	onEachExchange(b, ranks, func(r *exchangeBench) error {
		gather := symmem.Call{
			Operation: symmem.OpAllGatherV, Type: symmem.Uint8, Path: symmem.PathDirect,
			Send: slice(r.input, 0, bytes), Recv: slice(r.symmetric, 0, int64(len(ranks))*bytes),
			Splits: &symmem.Splits{RecvCounts: slices.Repeat([]int64{bytes}, len(ranks))},
		}
		return errors.Join(
			r.capture(calls, func() error { return r.Interop().Do(r.ctx, r.World(), gather, nil) }),
			r.capture(calls, func() error { return r.World().Barrier(r.ctx, nil) }))
	})
	var gathers, barriers []float64
	for range 5 {
		gathers = append(gathers, slowestBatch(b, ranks, 0, calls, replays))
		barriers = append(barriers, slowestBatch(b, ranks, 1, calls, 100*replays))
	}

	onEachExchange(b, ranks, (*exchangeBench).closeGraphs)
	link, barrier = float64((len(ranks)-1)*bytes)/median(gathers), median(barriers)
	b.Logf("%d ranks: a push of 64 MiB runs at %.0f GB/s, a barrier takes %.2f us", len(ranks),
		link/1e3, barrier)
	return link, barrier
}

// measureExchange measures a shape in turns. Each turn begins with a different implementation.
func measureExchange(
	b *testing.B, ranks []*exchangeBench, e *exchangeShape, link, barrier float64,
) {
	calls, replays := 20, 10
	if e.tokens() > 1024 {
		calls, replays = 4, 5
	}

	onEachExchange(b, ranks, func(r *exchangeBench) error {
		if err := r.writeIDs(e); err != nil {
			return err
		}

		for i := range exchangeVariants {
			if err := r.capture(calls, func() error { return r.pair(e, i) }); err != nil {
				return err
			}
		}

		return nil
	})
	var times [exchangeVariants][]float64
	var ratios, sparseRatios, sparseToNCCL []float64
	turn := func(n int) (slowest [exchangeVariants]float64) {
		for i := range exchangeVariants {
			variant := (i + n) % exchangeVariants
			slowest[variant] = slowestBatch(b, ranks, variant, calls, replays)
		}

		return slowest
	}
	turn(0) // warms up
	for n := 0; b.Loop(); n++ {
		slowest := turn(n)
		for variant, us := range slowest {
			times[variant] = append(times[variant], us)
		}

		ratios = append(ratios, slowest[exchangeNCCL]/slowest[exchangeRows])
		sparseRatios = append(sparseRatios, slowest[exchangeRows]/slowest[exchangeSparse])
		sparseToNCCL = append(sparseToNCCL, slowest[exchangeNCCL]/slowest[exchangeSparse])
	}

	onEachExchange(b, ranks, (*exchangeBench).closeGraphs)
	rows := median(times[exchangeRows])
	b.ReportMetric(0, "ns/op") // hides the time of a turn
	b.ReportMetric(rows, "us-rows")
	b.ReportMetric(median(times[exchangeLoose]), "us-loose")
	b.ReportMetric(median(times[exchangeSparse]), "us-sparse")
	b.ReportMetric(median(times[exchangeNCCL]), "us-nccl")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(sparseRatios), "sparse-ratio")
	b.ReportMetric(median(sparseToNCCL), "sparse-nccl")
	b.ReportMetric(rows/(float64(e.maxTraffic())/link+2*barrier), "limit")
	b.ReportMetric(median(times[exchangeSparse])/(float64(e.maxSparseTraffic())/link+2*barrier),
		"sparse-limit")
}
