package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// TestLateReplayDoesNotTouchReusedBuffers replays a graph late on rank 1, after rank 0 has timed
// out and reused its buffer. The late replay must not change rank 0's buffer, whether or not rank
// 1 has noticed the failure.
func TestLateReplayDoesNotTouchReusedBuffers(t *testing.T) {
	for _, o := range []driver.Operation{driver.AllReduce, driver.AllGather} {
		for _, hasNoticed := range []bool{true, false} {
			name := fmt.Sprintf("%v/noticed=%v", o, hasNoticed)
			t.Run(name, func(t *testing.T) { replayLate(t, o, hasNoticed) })
		}
	}
}

// inPlaceCall returns an in-place AllReduce or AllGather of two ranks. Its output is the whole
// buffer of p.
func (p *repeatedSum) inPlaceCall(o driver.Operation, rank int) driver.Call {
	const ranks, elementBytes = 2, 4
	call := p.call(driver.PathDirect)
	call.Operation = o
	if o == driver.AllGather { // each rank sends its part of the output
		call.Count /= ranks
		call.Send += uintptr(int64(rank) * elementBytes * call.Count)
	}

	return call
}

// replayLate replays a graph with a call of operation o twice. Rank 1 makes the second replay
// after the group has failed. Unless hasNoticed is set, it does so as if it did not know of the
// failure.
func replayLate(t *testing.T, o driver.Operation, hasNoticed bool) {
	w := newGroup(t, 2, time.Second)
	graphs := make([]*foreignStream, 2) // by rank
	sums := make([]*repeatedSum, 2)     // by rank
	w.withSum(countFor["bulk"], func(m *testRank, p *repeatedSum) (err error) {
		call := p.inPlaceCall(o, m.rank)
		work, err := m.group.Offer(call).(*plan).choose()
		if err != nil {
			return err
		}

		if launch := work.(*kernels.Launch); !launch.Bulk {
			return failuref("the call uses kernel %s, want a bulk kernel", launch.Kernel)
		}

		sums[m.rank] = p
		if graphs[m.rank], err = m.captureForeign(call); err != nil {
			return err
		}

		return graphs[m.rank].replayAndWait()
	})
	const reusedValue = 7 // the value that rank 0 writes to its buffer after the timeout
	w.must(func(m *testRank) error {
		if m.rank == 1 {
			<-w.ranks[0].group.Failed()
			return nil
		}

		if err := graphs[0].replayAndWait(); err != nil { // until the kernel times out
			return err
		}

		p := sums[0]
		p.unit = reusedValue
		return m.setToUnit(w, p, 4*p.count)
	})
	w.must(func(m *testRank) error {
		if m.rank == 0 {
			return nil
		}

		<-m.group.(*communicator).stages.kernelsEnded
		if !hasNoticed {
			if err := m.clearReport(); err != nil {
				return err
			}
		}

		if err := graphs[1].replayAndWait(); err != nil {
			return err
		}

		return m.checkAllPoison(w, sums[1]) // poison is written in place of missing results
	})
	w.must(func(m *testRank) (err error) {
		if m.rank == 0 {
			err = m.checkUnpoisoned(w, sums[0], reusedValue)
		}

		g := graphs[m.rank]
		if fault := g.stream.Synchronize(t.Context()); fault == nil {
			err = errors.Join(err, errors.New("Synchronize = nil, want the fault"))
		}

		err = errors.Join(err, g.destroy())
		return errors.Join(err, g.closeStream())
	})
}

// clearReport clears the report, from which kernels of this rank learn of a failure.
func (m *testRank) clearReport() error {
	transport, err := m.group.(*communicator).direct.exchange.Transport()
	if err != nil {
		return err
	}

	clear(dl.Bytes(transport.Report, int(unsafe.Sizeof(kernels.Report{}))))
	return nil
}

// checkUnpoisoned checks that all elements of the buffer of p are want.
func (m *testRank) checkUnpoisoned(w *testGroup, p *repeatedSum, want uint32) error {
	// countPoison returns an error if an element is neither poison nor want.
	poisonCount, err := m.countPoison(w, p, want)
	if err == nil && poisonCount > 0 {
		err = fmt.Errorf("%d elements of the reused buffer are poison, want 0", poisonCount)
	}

	return err
}
