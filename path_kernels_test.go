package symmem_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// TestPublicCallsReachEveryKernel makes public calls on 2, 3 and 4 ranks and then asks the software
// GPU which kernels have run. All others are dead code.
func TestPublicCallsReachEveryKernel(t *testing.T) {
	launches := launchCounter(t)
	countsBefore := map[string]uint64{}
	for _, name := range kernelNames(t) {
		countsBefore[name] = launches(name)
	}
	for _, n := range []int{2, 3, 4} {
		runRanks(t, n, symmem.Options{Path: symmem.PathDirect}, func(r *rank) {
			p := r.poolWith(symmem.PoolOptions{
				Domain: r.World(), FirstSegment: 4 * maxCallBytes,
			})
			c := kernelCalls{
				rank: r, in: r.alloc(p, maxCallBytes).Memory(), out: r.alloc(p, maxCallBytes).Memory(),
			}
			c.callCollectives()
			c.callNorms(p)
			c.callRows()
			c.callRoutes()
			c.sendMessage()
			c.callWindowPath()
			c.synchronize()
		})
	}
	for name, count := range countsBefore {
		if launches(name) == count && !slices.Contains(kernels.Retired, name) {
			t.Errorf("no public call has launched %s", name)
		}
	}
}

// launchCounter returns a function that counts a kernel's launches. It skips the test on real GPUs.
func launchCounter(t *testing.T) func(kernel string) uint64 {
	t.Helper()
	library, found := dl.FindLoaded(os.Getenv("SYMMEM_CUDA"))
	if !found && os.Getenv(backendVariable) == "nccl" {
		requireRanks(t, 2)
		library, found = dl.FindLoaded(os.Getenv("SYMMEM_CUDA"))
	}
	var count dl.Symbol
	if found {
		count, found = library.Find("softgpu_runs")
	}
	if !found {
		t.Skip(fmt.Errorf("a real GPU does not count launches: %w", symmem.ErrUnsupported))
	}
	return func(kernel string) uint64 {
		name := append([]byte(kernel), 0)
		return uint64(count.Call(dl.AddressOf(&name[0])))
	}
}

// kernelNames lists the kernels in the PTX code of all objects.
func kernelNames(t *testing.T) (names []string) {
	t.Helper()
	for _, object := range []func(major, minor int) ([]byte, error){
		kernels.Object, kernels.MessageObject, kernels.RowsObject, kernels.NormObject,
		kernels.RouteObject,
	} {
		const ptxOnly = 11 // a compute capability without a compiled object
		text, err := object(ptxOnly, 0)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if entry, ok := strings.CutPrefix(line, ".visible .entry "); ok {
				name, _, _ := strings.Cut(entry, "(")
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		t.Fatal("the objects have no kernels")
	}
	return names
}

// maxCallBytes is large enough to launch the kernels for large buffers on four ranks.
const maxCallBytes = 12 << 20

// kernelCalls makes calls on symmetric memory that launch every kernel for this number of ranks.
type kernelCalls struct {
	*rank
	in, out symmem.Memory
}

// callCollectives makes the smallest call that launches each kernel, for several types.
func (c *kernelCalls) callCollectives() {
	called := map[string]symmem.Call{}
	for _, t := range []symmem.DataType{
		symmem.Float32, symmem.Float16, symmem.BFloat16, symmem.Int32, symmem.Float64,
	} {
		for _, operation := range []symmem.Operation{
			symmem.OpAllReduce, symmem.OpReduceScatter, symmem.OpAllGather,
		} {
			for bytes := int64(4 << 10); bytes <= maxCallBytes; bytes += bytes / 4 {
				c.addFirst(called, symmem.Call{
					Operation: operation, Type: t, Count: bytes / int64(t.Size()), Send: c.in, Recv: c.out,
				})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(called)) {
		c.ok(c.Interop().Do(c.ctx, c.World(), called[name], nil))
	}
}

// callWindowPath launches an empty kernel of symmem before NCCL's, which might otherwise start
// before earlier work has completed; see nccl.EarlyStart.
func (c *kernelCalls) callWindowPath() {
	c.ok(c.World().SetPath(c.ctx, symmem.PathWindow))
	c.ok(c.World().AllReduce(c.ctx, c.in, c.out, 1024, symmem.Float32, symmem.Sum, nil))
}

// addFirst records the first call that launches a kernel.
func (c *kernelCalls) addFirst(called map[string]symmem.Call, call symmem.Call) {
	planned := driver.Call{
		Operation: call.Operation, DataType: call.Type, ReduceOp: call.Op, Count: call.Count,
	}
	if send, recv := planned.Spans(c.Size(), c.Rank()); max(send, recv) > maxCallBytes {
		return
	}
	const multiprocessors = 4 // of the software GPU
	l := kernels.Launch{
		Call: &planned, Rank: c.Rank(), Ranks: c.Size(), Symmetric: true,
		Multiprocessors: multiprocessors,
	}
	if l.Choose() != nil {
		return
	}
	if _, ok := called[l.Kernel]; !ok {
		called[l.Kernel] = call
	}
}

func (c *kernelCalls) callRows() {
	for _, bytes := range []int64{4 << 10, maxCallBytes} {
		for _, t := range []symmem.DataType{
			symmem.Float32, symmem.Float16, symmem.BFloat16, symmem.Int32,
		} {
			counts := make([]int64, c.Size())
			counts[0] = bytes / int64(t.Size())
			c.ok(c.World().ReduceScatterV(c.ctx, c.in, c.out, counts, t, symmem.Sum, nil))
			c.ok(c.World().AllGatherV(c.ctx, c.in, c.out, counts, t, nil))
		}
	}
}

func (c *kernelCalls) callRoutes() {
	a := symmem.RouteArgs{
		Routing: symmem.Routing{
			Experts: 8, TopK: 2, MaxTokens: 16, Hidden: 64, Type: symmem.BFloat16,
		},
		Tokens: 16, IDs: c.in, Weights: c.in, Send: c.in, Recv: c.out,
	}
	for _, a.MaxTokens = range []int64{16, 1 << 10} {
		c.ok(c.World().Dispatch(c.ctx, a, nil))
		c.ok(c.World().Combine(c.ctx, a, nil))
	}
	a.MaxTokens = 1
	p := symmem.PermuteArgs{
		Routing: a.Routing, Dispatched: c.in, Permuted: c.out, Computed: c.out, Returned: c.in,
	}
	c.ok(c.World().Permute(p, nil))
	c.ok(c.World().Unpermute(p, nil))
}

func (c *kernelCalls) callNorms(p *symmem.Pool) {
	const maxElements = 1 << 22
	residual, weight := c.alloc(p, 2*maxElements).Memory(), c.alloc(p, 2*driver.MaxHidden).Memory()
	quantized, scales := c.alloc(p, maxElements).Memory(), c.alloc(p, maxElements/32).Memory()
	// Rows and elements that take a kernel each: one step, two steps on more than 2 ranks, and a sum
	// with a local kernel. For the largest shapes, there are kernels that read the rows of peers.
	sums, scattered := [][2]int64{{1, 1024}, {176, 1024}, {1, driver.MaxHidden}}, [][2]int64{{1, 1024}}
	if c.Size() == 2 {
		sums = append(sums, [2]int64{900, 4096})
	}
	if c.Size() != 3 {
		scattered = append(scattered, [2]int64{260, 4096})
	}
	for _, a := range []symmem.NormArgs{
		{Type: symmem.BFloat16},
		{Type: symmem.Float16},
		{Type: symmem.BFloat16, Quant: symmem.QuantPerGroup, Quantized: quantized, Scales: scales},
		{Type: symmem.Float16, Quant: symmem.QuantPerGroup, Quantized: quantized, Scales: scales},
	} {
		a.Input, a.Output, a.Residual, a.Weight = c.in, c.out, residual, weight
		for _, shape := range sums {
			a.Rows, a.Hidden = shape[0], shape[1]
			c.ok(c.World().AllReduceRMSNorm(c.ctx, a, nil))
		}
		for _, shape := range scattered {
			a.Rows, a.Hidden = shape[0], shape[1]
			c.ok(c.World().ReduceScatterRMSNorm(c.ctx, a, nil))
		}
	}
}

func (c *kernelCalls) sendMessage() {
	for _, count := range []int64{16, 1 << 20} {
		switch c.Rank() {
		case 0:
			c.ok(c.World().Send(c.ctx, c.in, count, symmem.Float32, 1, nil))
		case 1:
			c.ok(c.World().Recv(c.ctx, c.out, count, symmem.Float32, 0, nil))
		}
	}
}
