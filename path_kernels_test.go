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

// measuredAgainst are kernels that no call launches: a norm is measured against them.
var measuredAgainst = []string{kernels.AddKernel, kernels.NormKernel}

// TestPublicCallsReachEveryKernel makes calls of the public API on 2, 3 and 4 ranks, and asks the
// software GPU which kernels have run. A kernel that has not is dead code, whatever tests of the
// backend say about it.
func TestPublicCallsReachEveryKernel(t *testing.T) {
	runs := softGPURuns(t)
	before := map[string]uint64{}
	for _, name := range kernelNames(t) {
		before[name] = runs(name)
	}
	for _, n := range []int{2, 3, 4} {
		runRanks(t, n, symmem.Options{Path: symmem.PathDirect}, func(r *rank) {
			p := r.poolWith(symmem.PoolOptions{
				Domain: r.World(), FirstSegment: 4 * mostCalled,
			})
			c := kernelCalls{
				rank: r, in: r.alloc(p, mostCalled).Memory(), out: r.alloc(p, mostCalled).Memory(),
			}
			c.collectives()
			c.norms(p)
			c.messages()
			c.window()
			c.synchronize()
		})
	}
	for name, count := range before {
		if runs(name) == count && !slices.Contains(measuredAgainst, name) {
			t.Errorf("no public call has launched %s", name)
		}
	}
}

// softGPURuns returns what counts launches of a kernel, or skips the test.
func softGPURuns(t *testing.T) func(kernel string) uint64 {
	t.Helper()
	library, found := dl.Resident(os.Getenv("SYMMEM_CUDA"))
	if !found && os.Getenv(backendVariable) == "nccl" {
		needRanks(t, 2)
		library, found = dl.Resident(os.Getenv("SYMMEM_CUDA"))
	}
	var count dl.Symbol
	if found {
		count, found = library.Find("softgpu_runs")
	}
	if !found {
		t.Skip(fmt.Errorf("counting launches by name, on a real GPU: %w", symmem.ErrUnsupported))
	}
	return func(kernel string) uint64 {
		name := append([]byte(kernel), 0)
		return uint64(count.Call(dl.AddressOf(&name[0])))
	}
}

// kernelNames lists all kernels, as the PTX of their objects names them.
func kernelNames(t *testing.T) (names []string) {
	t.Helper()
	for _, object := range []func(major, minor int) ([]byte, error){
		kernels.Object, kernels.MessageObject,
	} {
		const withoutBinary = 11
		text, err := object(withoutBinary, 0)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if entry, is := strings.CutPrefix(line, ".visible .entry "); is {
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

// mostCalled is the size of the largest buffer of a call: parts of four ranks that take bulk
// kernels.
const mostCalled = 12 << 20

// kernelCalls makes calls on symmetric memory that together take all kernels of a group's size.
type kernelCalls struct {
	*rank
	in, out symmem.Memory
}

// collectives makes the smallest call of each kernel that the table of kernels has for a type.
func (c *kernelCalls) collectives() {
	called := map[string]symmem.Call{}
	for _, t := range []symmem.DataType{
		symmem.Float32, symmem.Float16, symmem.BFloat16, symmem.Int32, symmem.Float64,
	} {
		for _, operation := range []symmem.Operation{
			symmem.OpAllReduce, symmem.OpReduceScatter, symmem.OpAllGather,
		} {
			for bytes := int64(4 << 10); bytes <= mostCalled; bytes += bytes / 4 {
				c.choose(called, symmem.Call{
					Operation: operation, Type: t, Count: bytes / int64(t.Size()), Send: c.in, Recv: c.out,
				})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(called)) {
		c.ok(c.Interop().Do(c.ctx, c.World(), called[name], nil))
	}
}

// window makes a call on the window path of an NCCL that begins too early, so that a kernel of ours
// goes before it.
func (c *kernelCalls) window() {
	c.ok(c.World().SetPath(c.ctx, symmem.PathWindow))
	c.ok(c.World().AllReduce(c.ctx, c.in, c.out, 1024, symmem.Float32, symmem.Sum, nil))
}

// choose notes a call if its kernel has none so far.
func (c *kernelCalls) choose(called map[string]symmem.Call, call symmem.Call) {
	of := driver.Call{
		Operation: call.Operation, DataType: call.Type, ReduceOp: call.Op, Count: call.Count,
	}
	if send, recv := of.Spans(c.Size()); max(send, recv) > mostCalled {
		return
	}
	const multiprocessors = 4 // of the software GPU
	l := kernels.Launch{
		Call: &of, Rank: c.Rank(), Ranks: c.Size(), Symmetric: true, Multiprocessors: multiprocessors,
	}
	if l.Choose() != nil {
		return
	}
	if _, has := called[l.Kernel]; !has {
		called[l.Kernel] = call
	}
}

// norms makes one of many short rows, and one whose rows are as long as they can be.
func (c *kernelCalls) norms(p *symmem.Pool) {
	for _, shape := range [][2]int64{{256, 1024}, {1, driver.MaxHidden}} {
		rows, hidden := shape[0], shape[1]
		c.ok(c.World().AllReduceRMSNorm(c.ctx, symmem.NormArgs{
			Input: c.in, Output: c.out, Rows: rows, Hidden: hidden,
			Residual: c.alloc(p, 2*rows*hidden).Memory(), Weight: c.alloc(p, 2*hidden).Memory(),
		}, nil))
	}
}

// messages sends a small and a large one from rank 0 to rank 1.
func (c *kernelCalls) messages() {
	for _, count := range []int64{16, 1 << 20} {
		switch c.Rank() {
		case 0:
			c.ok(c.World().Send(c.ctx, c.in, count, symmem.Float32, 1, nil))
		case 1:
			c.ok(c.World().Recv(c.ctx, c.out, count, symmem.Float32, 0, nil))
		}
	}
}
