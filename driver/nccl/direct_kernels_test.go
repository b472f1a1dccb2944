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

// A direct kernel's name describes its calls. For example, bulk_sum_bf16_4 runs large calls (bulk)
// that sum bfloat16 elements in groups of 4 ranks.

// operations lists the operations of direct kernels, except barriers and norms. Operations that
// need larger buffers for the same count come later.
var operations = []driver.Operation{
	driver.AllReduce, driver.Reduce, driver.ReduceScatter, driver.Broadcast, driver.AllGather,
	driver.AllToAll,
}

// maxOfferBytes limits the buffers of offers. Calls with a quarter of it still need a bulk kernel.
const maxOfferBytes = 12 << 20

// offers returns supported trials that fit into the buffers, by kernel, from small to large.
func (p *testbed) offers(shared layout) map[string][]trial {
	trialsByKernel := map[string][]trial{}
	m := p.ranks[0]
	send, recv := p.fields(m, shared)
	elementSize := int64(shared.dataType.Size())
	maxElements := min(p.room(shared), maxOfferBytes/elementSize)
	const minOfferBytes = 4 << 10
	for bytes := int64(minOfferBytes); bytes <= maxOfferBytes; bytes += bytes / 4 {
		for _, operation := range operations {
			c := trial{layout: shared, operation: operation, count: bytes / elementSize}
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
			trialsByKernel[kernel] = append(trialsByKernel[kernel], c)
		}
	}

	return trialsByKernel
}

func (m *testRank) countLaunch(p *plan) {
	for k := p.kernel; k != nil; k = k.next {
		m.launched[k.function]++
	}
}

// allKernels reads the names of the kernels from PTX, CUDA's assembly language.
func allKernels(t *testing.T) []string {
	t.Helper()
	const ptxMajor, ptxMinor = 11, 0 // an unknown compute capability, for which the objects are PTX
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
	isUnused := func(name string) bool { return !isUsedBy(name, ranks) }
	return slices.DeleteFunc(allKernels(t), isUnused)
}

func isUsedBy(kernel string, ranks int) bool {
	switch {
	case slices.Contains(kernels.Retired, kernel):
		return false
	case strings.HasPrefix(kernel, "norm_local"): // does not communicate with other ranks
		return true
	case strings.HasSuffix(kernel, "_any"): // for groups of more than 2 ranks
		return ranks > 2
	}

	suffix := "8" // for any number of ranks except 2 and 4
	if ranks == 2 || ranks == 4 {
		suffix = strconv.Itoa(ranks)
	}

	return strings.HasSuffix(kernel, suffix)
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

// requireKernels logs the rank's launches, and fails the test if one of the given kernels was never
// launched.
func (m *testRank) requireKernels(t *testing.T, required []string) {
	t.Helper()
	var namesWithCounts []string
	launchCounts := m.launchesByName(t)
	for _, name := range slices.Sorted(maps.Keys(launchCounts)) {
		namesWithCounts = append(namesWithCounts, fmt.Sprintf("%s %d", name, launchCounts[name]))
	}

	t.Logf("rank %d launched %s", m.number, strings.Join(namesWithCounts, ", "))
	for _, name := range required {
		if launchCounts[name] == 0 {
			t.Errorf("rank %d never launched kernel %s", m.number, name)
		}
	}
}
