package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/sys/systest"
)

// ringAllToAllV returns an AllToAllV in which each rank sends count elements to the next rank.
func (m *testRank) ringAllToAllV(p *repeatedSum, count int64, path driver.Path) driver.Call {
	ranks := len(m.group.(*communicator).cfg.Ranks)
	zeros := func() []int64 { return make([]int64, ranks) }
	s := &driver.Splits{
		SendCounts: zeros(), SendOffsets: zeros(), RecvCounts: zeros(), RecvOffsets: zeros(),
	}
	s.SendCounts[(m.rank+1)%ranks], s.RecvCounts[(m.rank+ranks-1)%ranks] = count, count
	call := p.call(path)
	call.Operation, call.Count, call.Splits = driver.AllToAllV, 0, s
	return call
}

// TestSplitsInACaptureAreCompared captures calls whose splits do not match. They must be refused,
// because a replay would wait forever for elements that no rank sends.
func TestSplitsInACaptureAreCompared(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(true)
		call := m.ringAllToAllV(p, 10, driver.PathPlain)
		call.Splits.RecvCounts[1-m.rank] += int64(m.rank)
		_, err := m.captureForeign(call)
		var messageErr *driver.MessageError
		if !errors.As(err, &messageErr) || len(messageErr.Ends) != 1 {
			return failuref("captureForeign = %v, want a MessageError about one message", err)
		}

		return nil
	})
}

// TestAllToAllWithoutNCCLAlltoAll runs AllToAll with a version of NCCL that has no ncclAlltoAll,
// which was added in 2.28.3.
func TestAllToAllWithoutNCCLAlltoAll(t *testing.T) {
	requireSoftGPU(t, "has a configurable version of NCCL")
	c := systest.Command(t, systest.Patience, os.Args[0],
		"-test.run=^TestContract$/^collectives$/^(two|three)_ranks_get")
	c.Env = append(os.Environ(), "SOFTGPU_NCCL=22707")
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
