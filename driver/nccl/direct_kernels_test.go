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

// Tests use these functions to cover each kernel of the direct path, such as bulk_sum_bf16_4: a
// bulk kernel, for large calls, that adds bfloat16 elements in groups of 4 ranks.

// operations of direct kernels, except barriers and norms, by ascending buffer size.
var operations = []driver.Operation{
	driver.AllReduce, driver.Reduce, driver.ReduceScatter, driver.Broadcast, driver.AllGather,
	driver.AllToAll,
}

// maxOfferBytes limits the buffers of offers. A quarter of it still needs a bulk kernel.
const maxOfferBytes = 12 << 20

// offers returns supported calls that fit into the buffers, by kernel, from small to large.
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
			work, unsupportedErr := m.group.Offer(call).(*plan).choose()
			if unsupportedErr != nil {
				continue
			}

			kernel := work.(*kernels.Launch).Kernel
			callsByKernel[kernel] = append(callsByKernel[kernel], c)
		}
	}

	return callsByKernel
}

func (m *testRank) countLaunch(p *plan) {
	for k := p.kernel; k != nil; k = k.next {
		m.launched[k.function]++
	}
}

// allKernels reads the names of the kernels from PTX, CUDA's assembly language.
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

// kernelsOf returns the kernels that groups of the given size use.
func kernelsOf(t *testing.T, ranks int) []string {
	t.Helper()
	suffix := "8" // for any number of ranks except 2 and 4
	if ranks == 2 || ranks == 4 {
		suffix = strconv.Itoa(ranks)
	}

	var names []string
	for _, name := range allKernels(t) {
		var isUsed bool
		switch {
		case slices.Contains(kernels.Retired, name):
			isUsed = false
		case strings.HasPrefix(name, "norm_local"):
			isUsed = true // by norms of a few long rows
		case strings.HasSuffix(name, "_any"):
			isUsed = ranks > 2 // two-shot kernels
		default:
			isUsed = strings.HasSuffix(name, suffix)
		}

		if isUsed {
			names = append(names, name)
		}
	}

	return names
}

func (m *testRank) launchesByName(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	err := m.device.gpu.Do(func() error {
		for _, name := range allKernels(t) {
			f, err := m.device.collectives.Function(m.device.gpu, name)
			if err != nil {
				return err
			}

			if count := m.launched[f]; count > 0 {
				counts[name] = count
			}
		}

		return nil
	})
	if err != nil {
		t.Error(err)
	}

	return counts
}

// requireKernels fails the test if the rank has never launched one of the given kernels.
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
