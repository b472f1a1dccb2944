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

// TestPublicCallsReachEveryKernel makes public calls on 2, 3 and 4 ranks, because some kernels need
// a certain number of ranks. Then it asks the software GPU, a libcuda without a device, which
// kernels have run. All others are dead code.
func TestPublicCallsReachEveryKernel(t *testing.T) {
	launches := launchCounter(t)
	countsBefore := map[string]uint64{}
	for _, name := range kernelNames(t) {
		countsBefore[name] = launches(name)
	}

	for _, n := range []int{2, 3, 4} {
		runRanks(t, n, symmem.Options{Path: symmem.PathDirect}, func(r *rank) {
			p := r.poolWith(symmem.PoolOptions{
				Domain: r.World(), FirstSegment: 4 * maxCallBytes, // for the buffers of all calls
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
			t.Errorf("no public call has launched the kernel %s, want at least one launch", name)
		}
	}
}

// launchCounter returns a function that counts a kernel's launches in this process so far. It skips
// the test on real GPUs, which do not count, and on the host backend.
func launchCounter(t *testing.T) func(kernel string) uint64 {
	t.Helper()
	library, found := dl.FindLoaded(os.Getenv("SYMMEM_CUDA"))
	if !found && os.Getenv(backendVariable) == "nccl" {
		requireRanks(t, 2) // opens a world, which loads the library
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
		name := append([]byte(kernel), 0) // as C expects it
		return uint64(count.Call(dl.AddressOf(&name[0])))
	}
}

// kernelNames lists the kernels in the PTX code of all objects. It fails the test if there are
// none.
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

// callCollectives makes the smallest call that launches each kernel, for several types. To find it,
// it tries growing sizes without launching anything.
func (c *kernelCalls) callCollectives() {
	called := map[string]symmem.Call{} // by kernel
	for _, t := range []symmem.DataType{
		symmem.Float32, symmem.Float16, symmem.BFloat16, symmem.Int32, symmem.Float64,
	} {
		for _, operation := range []symmem.Operation{
			symmem.OpAllReduce, symmem.OpReduceScatter, symmem.OpAllGather,
		} {
			const minCallBytes = 4 << 10
			for bytes := int64(minCallBytes); bytes <= maxCallBytes; bytes += bytes / 4 {
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

// callWindowPath takes the window path, on which NCCL's kernel might start before earlier work has
// completed. To prevent this, the path launches an empty kernel of symmem first; see
// nccl.EarlyStart.
func (c *kernelCalls) callWindowPath() {
	c.ok(c.World().SetPath(c.ctx, symmem.PathWindow))
	const count = 1024
	c.ok(c.World().AllReduce(c.ctx, c.in, c.out, count, symmem.Float32, symmem.Sum, nil))
}

// addFirst adds the call to called, unless the map has a call for the same kernel. It ignores calls
// without a kernel, and calls that need larger buffers.
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

// callRows makes calls on rows of different lengths: rank 0 has all elements. Small and large calls
// have different kernels.
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

// callRoutes routes tokens between experts. The inputs may have any contents, because ids that
// belong to no expert are ignored.
func (c *kernelCalls) callRoutes() {
	a := symmem.RouteArgs{
		Routing: symmem.Routing{
			Experts: 8, TopK: 2, MaxTokens: 16, Hidden: 64, Type: symmem.BFloat16,
		},
		Tokens: 16, IDs: c.in, Weights: c.in, Send: c.in, Recv: c.out,
	}
	// Above 512 tokens, ranks read each other's rows instead of using the exchange memory.
	for _, maxTokens := range []int64{16, 1 << 10} {
		a.MaxTokens = maxTokens
		c.ok(c.World().Dispatch(c.ctx, a, nil))
		c.ok(c.World().Combine(c.ctx, a, nil))
	}

	a.MaxTokens = 1 // so that the rows fit into the buffers
	p := symmem.PermuteArgs{
		Routing: a.Routing, Dispatched: c.in, Permuted: c.out, Computed: c.out, Returned: c.in,
	}
	c.ok(c.World().Permute(p, nil))
	c.ok(c.World().Unpermute(p, nil))
}

// callNorms computes RMS norms of shapes that have different kernels.
func (c *kernelCalls) callNorms(p *symmem.Pool) {
	const maxElements = 1 << 22 // of a tensor
	const elementBytes, scaleBytes = 2, 4
	residual := c.alloc(p, elementBytes*maxElements).Memory()
	weight := c.alloc(p, elementBytes*driver.MaxHidden).Memory()
	quantized := c.alloc(p, maxElements).Memory() // in one byte each
	scales := c.alloc(p, scaleBytes*maxElements/driver.QuantGroup).Memory()
	type shape struct{ rows, hidden int64 } // hidden is the number of elements of a row
	sums := []shape{
		{rows: 1, hidden: 1024},             // a kernel of one step
		{rows: 176, hidden: 1024},           // on more than 2 ranks, a kernel of two steps
		{rows: 1, hidden: driver.MaxHidden}, // a sum, followed by a local kernel
	}
	scattered := []shape{{rows: 1, hidden: 1024}}
	// For the largest shapes, there are kernels that read the rows of peers.
	if c.Size() == 2 {
		sums = append(sums, shape{rows: 900, hidden: 4096})
	}

	if c.Size() != 3 {
		scattered = append(scattered, shape{rows: 260, hidden: 4096})
	}

	for _, a := range []symmem.NormArgs{
		{Type: symmem.BFloat16},
		{Type: symmem.Float16},
		{Type: symmem.BFloat16, Quant: symmem.QuantPerGroup, Quantized: quantized, Scales: scales},
		{Type: symmem.Float16, Quant: symmem.QuantPerGroup, Quantized: quantized, Scales: scales},
	} {
		a.Input, a.Output, a.Residual, a.Weight = c.in, c.out, residual, weight
		for _, s := range sums {
			a.Rows, a.Hidden = s.rows, s.hidden
			c.ok(c.World().AllReduceRMSNorm(c.ctx, a, nil))
		}

		for _, s := range scattered {
			a.Rows, a.Hidden = s.rows, s.hidden
			c.ok(c.World().ReduceScatterRMSNorm(c.ctx, a, nil))
		}
	}
}

// sendMessage sends a small and a large message, which have different kernels.
func (c *kernelCalls) sendMessage() {
	const sender, receiver = 0, 1
	for _, count := range []int64{16, 1 << 20} {
		switch c.Rank() { // other ranks have no part in a message
		case sender:
			c.ok(c.World().Send(c.ctx, c.in, count, symmem.Float32, receiver, nil))
		case receiver:
			c.ok(c.World().Recv(c.ctx, c.out, count, symmem.Float32, sender, nil))
		}
	}
}
