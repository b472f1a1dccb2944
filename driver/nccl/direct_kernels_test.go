package nccl

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// Tests use these functions to choose calls for each kernel of the direct path, and to check that
// each kernel has been launched. The name of a kernel describes it. For example, bulk_sum_bf16_4 is
// a bulk kernel, for large calls, that adds bfloat16 elements in groups of 4 ranks.

// operations lists the operations that direct kernels run, except barriers and norms, in the order
// of their buffer sizes.
var operations = []driver.Operation{
	driver.AllReduce, driver.Reduce, driver.ReduceScatter, driver.Broadcast, driver.AllGather,
	driver.AllToAll,
}

// maxOfferBytes limits the buffers of offers. With four ranks, each rank's share is still large
// enough to need a bulk kernel.
const maxOfferBytes = 12 << 20

// offers returns calls of many sizes by the name of the kernel that the direct path uses for them.
// All have the given layout. The calls of a kernel are sorted from small to large. Calls that do
// not fit into the buffers, or that the direct path does not support, are left out.
func (p *testbed) offers(w layout) map[string][]trial {
	callsByKernel := map[string][]trial{}
	m := p.ranks[0]
	send, recv := p.fields(m, w)
	elementSize := int64(w.dataType.Size())
	maxElements := min(p.room(w), maxOfferBytes/elementSize)
	for bytes := int64(4 << 10); bytes <= maxOfferBytes; bytes += bytes / 4 {
		for _, operation := range operations {
			c := trial{layout: w, operation: operation, count: bytes / elementSize}
			sendElements, recvElements := c.spans(len(p.ranks))
			if max(sendElements, recvElements) > maxElements {
				continue
			}

			call := c.call(m.rank, send, recv)
			work, err := m.group.Offer(call).(*plan).choose()
			isSupported := err == nil
			if isSupported {
				kernel := work.(*kernels.Launch).Kernel
				callsByKernel[kernel] = append(callsByKernel[kernel], c)
			}
		}
	}

	return callsByKernel
}

// countLaunch counts a launch of each kernel of a plan in m.launched.
func (m *testRank) countLaunch(p *plan) {
	for k := p.kernel; k != nil; k = k.next {
		m.launched[k.function]++
	}
}

// allKernels returns the names of the kernels for collectives and norms, which it reads from PTX
// (the assembly language of CUDA).
func allKernels(t *testing.T) []string {
	t.Helper()
	const ptxMajor, ptxMinor = 11, 0 // a compute capability for which the objects are PTX
	var names []string
	for _, object := range []func(major, minor int) ([]byte, error){
		kernels.Object, kernels.NormObject,
	} {
		ptx, err := object(ptxMajor, ptxMinor)
		if err != nil {
			t.Fatal(err)
		}

		for line := range strings.Lines(string(ptx)) {
			if entry, ok := strings.CutPrefix(line, ".visible .entry "); ok {
				name, _, _ := strings.Cut(entry, "(")
				names = append(names, name)
			}
		}
	}

	if len(names) == 0 {
		t.Fatal("the PTX objects contain no kernels")
	}

	return names
}

// kernelsOf returns the names of the kernels that groups with the given number of ranks use. Most
// names end in 2 for 2 ranks, in 4 for 4 ranks, and in 8 for any other number.
func kernelsOf(t *testing.T, ranks int) []string {
	t.Helper()
	suffix := "8"
	if ranks == 2 || ranks == 4 {
		suffix = strconv.Itoa(ranks)
	}

	var names []string
	for _, name := range allKernels(t) {
		var isUsed bool
		switch {
		case slices.Contains(kernels.Retired, name):
			isUsed = false // by any group
		case strings.HasPrefix(name, "norm_local"):
			isUsed = true // by norms of a few long rows
		case strings.HasSuffix(name, "_any"):
			isUsed = ranks > 2 // two-shot kernels, which 2 ranks do not use
		default:
			isUsed = strings.HasSuffix(name, suffix)
		}

		if isUsed {
			names = append(names, name)
		}
	}

	return names
}

// launchesByName returns how often the rank has launched each kernel since it was opened. Kernels
// without a launch are left out.
func (m *testRank) launchesByName(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	err := m.device.gpu.Do(func() error {
		for _, name := range allKernels(t) {
			f, err := m.device.collectives.Function(m.device.gpu, name)
			if err != nil {
				return err
			}

			if n := m.launched[f]; n > 0 {
				counts[name] = n
			}
		}

		return nil
	})
	if err != nil {
		t.Error(err)
	}

	return counts
}

// requireKernels logs how often the rank has launched each kernel, and fails the test if one of
// the given kernels was never launched.
func (m *testRank) requireKernels(t *testing.T, names []string) {
	t.Helper()
	var logged []string
	launchCounts := m.launchesByName(t)
	for _, name := range slices.Sorted(maps.Keys(launchCounts)) {
		logged = append(logged, fmt.Sprintf("%s %d", name, launchCounts[name]))
	}

	t.Logf("rank %d launched %s", m.number, strings.Join(logged, ", "))
	for _, name := range names {
		if launchCounts[name] == 0 {
			t.Errorf("rank %d never launched kernel %s", m.number, name)
		}
	}
}
