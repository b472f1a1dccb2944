package nccl

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"symmem/driver"
)

// TestTwoLevelsUseHostMemory makes allocations of scratch memory fail on some ranks, as if their
// GPUs were full: first in launches, and then mostly in captures. The sums must still be right, and
// the group must not fail.
func TestTwoLevelsUseHostMemory(t *testing.T) {
	var failures []string
	for i := range 8 {
		failures = append(failures, fmt.Sprintf("cuMemAllocAsync:%d:2", 60+3*i),
			fmt.Sprintf("cuMemAllocAsync:%d:2", 150+7*i))
	}
	if !inSoftGPUProcess(t, strings.Join(failures, ",")) {
		return
	}
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	const bytes = 4 << 10
	count := bytes / 4 / int64(len(w.ranks))
	w.must(func(m *testRank) error {
		p, err := prepare(m.group, m.twoLevelCall(driver.ReduceScatter, driver.Int32, count))
		for range 30 {
			if err == nil {
				err = m.group.Launch(m.stream, p)
			}
		}
		return err
	})
	var inputs [][]byte
	for _, input := range w.inputs {
		inputs = append(inputs, input[:bytes])
	}
	sum := twoLevelSum(driver.Int32, inputs)
	for range 4 {
		w.checkParts(driver.ReduceScatter, driver.Int32, count, sum)
	}
	var inLaunches, inGraphs atomic.Int64
	w.must(func(m *testRank) error {
		launches, graphs := m.device.streams.HostMemoryUses()
		inLaunches.Add(int64(launches))
		inGraphs.Add(int64(graphs))
		return nil
	})
	if inLaunches.Load() == 0 || inGraphs.Load() == 0 {
		t.Errorf("host memory was used %d times in launches and %d times in graphs, want both",
			inLaunches.Load(), inGraphs.Load())
	}
}
