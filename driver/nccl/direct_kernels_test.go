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

// operations lists the operations of direct kernels, except barriers and norms, sorted by the size
// of their buffers.
var operations = []driver.Operation{
	driver.AllReduce, driver.Reduce, driver.ReduceScatter, driver.Broadcast, driver.AllGather,
	driver.AllToAll,
}

// mostOffered is the largest buffer of an offer, in bytes: parts of four ranks, each large enough
// for bulk kernels.
const mostOffered = 12 << 20

// offers lists calls of a way, from small to large, by their kernel.
func (p *pitch) offers(w way) map[string][]trial {
	all, m := map[string][]trial{}, p.ranks[0]
	send, recv := p.fields(m, w)
	most := min(p.room(w), mostOffered/int64(w.dataType.Size()))
	for bytes := int64(4 << 10); bytes <= mostOffered; bytes += bytes / 4 {
		for _, operation := range operations {
			c := trial{way: w, operation: operation, count: bytes / int64(w.dataType.Size())}
			if from, to := c.spans(len(p.ranks)); max(from, to) > most {
				continue
			}
			call := c.call(m.rank, send, recv)
			launch, err := m.group.Offer(call).(*plan).choose()
			if err == nil {
				all[launch.Kernel] = append(all[launch.Kernel], c)
			}
		}
	}
	return all
}

// note counts the kernels of a launched plan.
func (m *testRank) note(p *plan) {
	for k := p.kernel; k != nil; k = k.next {
		m.launched[k.function]++
	}
}

// allKernels lists the kernels in the PTX object.
func allKernels(t *testing.T) []string {
	t.Helper()
	text, err := kernels.Object(11, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if entry, is := strings.CutPrefix(line, ".visible .entry "); is {
			name, _, _ := strings.Cut(entry, "(")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatal("the object has no kernels")
	}
	return names
}

// kernelsOf lists the kernels for groups of a number of ranks or, for 0, the local kernels.
func kernelsOf(t *testing.T, ranks int) []string {
	t.Helper()
	var names []string
	for _, name := range allKernels(t) {
		switch n := name[len(name)-1]; {
		case strings.Contains(name, "_local_") || strings.HasPrefix(name, "norm_"):
			if ranks == 0 {
				names = append(names, name)
			}
		case strings.HasSuffix(name, "_any"):
			if ranks > 2 { // 2 ranks use no two-shot kernel
				names = append(names, name)
			}
		case ranks == int(n-'0') || n == '8' && ranks != 0 && ranks != 2 && ranks != 4:
			names = append(names, name)
		}
	}
	return names
}

// ran returns the number of launches of each kernel, by name.
func (m *testRank) ran(t *testing.T) map[string]int {
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

// demand logs the number of launches of each kernel on a rank, and fails the test if a listed
// kernel was not launched.
func (m *testRank) demand(t *testing.T, names []string) {
	t.Helper()
	var counts []string
	ran := m.ran(t)
	for _, name := range slices.Sorted(maps.Keys(ran)) {
		counts = append(counts, fmt.Sprintf("%s %d", name, ran[name]))
	}
	t.Logf("rank %d has run %s", m.number, strings.Join(counts, ", "))
	for _, name := range names {
		if ran[name] == 0 {
			t.Errorf("%s has not run", name)
		}
	}
}
