package nccl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// operations lists the operations that direct kernels run, except barriers and norms, in the order
// of their buffer sizes.
var operations = []driver.Operation{
	driver.AllReduce, driver.Reduce, driver.ReduceScatter, driver.Broadcast, driver.AllGather,
	driver.AllToAll,
}

// maxOfferBytes limits the buffers of offers. With four ranks, each rank's share is still large
// enough to need a bulk kernel.
const maxOfferBytes = 12 << 20

// offers returns calls with the given layout, from small to large, by the kernel that they use.
func (p *testbed) offers(w layout) map[string][]trial {
	all, m := map[string][]trial{}, p.ranks[0]
	send, recv := p.fields(m, w)
	limit := min(p.room(w), maxOfferBytes/int64(w.dataType.Size()))
	for bytes := int64(4 << 10); bytes <= maxOfferBytes; bytes += bytes / 4 {
		for _, operation := range operations {
			c := trial{layout: w, operation: operation, count: bytes / int64(w.dataType.Size())}
			if send, recv := c.spans(len(p.ranks)); max(send, recv) > limit {
				continue
			}
			call := c.call(m.rank, send, recv)
			work, err := m.group.Offer(call).(*plan).choose()
			if err == nil {
				kernel := work.(*kernels.Launch).Kernel
				all[kernel] = append(all[kernel], c)
			}
		}
	}
	return all
}

func (m *testRank) countLaunch(p *plan) {
	for k := p.kernel; k != nil; k = k.next {
		m.launched[k.function]++
	}
}

// allKernels lists the kernels for collectives and norms, as found in the PTX objects.
func allKernels(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, object := range []func(major, minor int) ([]byte, error){
		kernels.Object, kernels.NormObject,
	} {
		text, err := object(11, 0)
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

// kernelsOf returns the kernels for groups of the given size.
func kernelsOf(t *testing.T, ranks int) []string {
	t.Helper()
	var names []string
	for _, name := range allKernels(t) {
		switch n := name[len(name)-1]; {
		case slices.Contains(kernels.Retired, name):
		case strings.HasPrefix(name, "norm_local"):
			names = append(names, name) // a norm of a few long rows uses it
		case strings.HasSuffix(name, "_any"):
			if ranks > 2 { // 2 ranks use no two-shot kernel
				names = append(names, name)
			}
		case ranks == int(n-'0') || n == '8' && ranks != 2 && ranks != 4:
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

// requireKernels fails the test if one of the given kernels was never launched on the rank.
func (m *testRank) requireKernels(t *testing.T, names []string) {
	t.Helper()
	var counts []string
	launchCounts := m.launchesByName(t)
	for _, name := range slices.Sorted(maps.Keys(launchCounts)) {
		counts = append(counts, fmt.Sprintf("%s %d", name, launchCounts[name]))
	}
	t.Logf("rank %d launched %s", m.number, strings.Join(counts, ", "))
	for _, name := range names {
		if launchCounts[name] == 0 {
			t.Errorf("kernel %s was never launched", name)
		}
	}
}
