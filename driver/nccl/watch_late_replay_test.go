package nccl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// Ranks 0 and 1 have captured a call of their group in graphs of another library, and have replayed
// them once. Then the following happens:
//
//  1. Rank 0 replays its graph, but rank 1 does not. Rank 0 times out, and the group fails.
//  2. Rank 0 reuses the call's buffer. It fills it with the value 7.
//  3. Rank 1 replays its graph late. The kernel must not write to rank 0's buffer. It fills rank
//     1's own buffer with poison, a value that stands for missing results.
//
// Kernels of a rank learn of the failure from a report, which is memory of this rank.

// TestLateReplayDoesNotTouchReusedBuffers replays a graph late on rank 1. The replay must not
// change rank 0's reused buffer, whether or not rank 1 has noticed the failure.
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
	const ranks = 2
	const elementBytes = 4
	call := p.call(driver.PathDirect)
	call.Operation = o
	if o == driver.AllGather { // each rank sends its part of the output
		call.Count /= ranks
		call.Send += uintptr(int64(rank) * elementBytes * call.Count)
	}

	return call
}

// lateReplay holds the graphs and buffers of both ranks, by rank.
type lateReplay struct {
	graphs [2]*foreignStream
	sums   [2]*repeatedSum
}

// reusedValue is the value that rank 0 writes to its buffer after the timeout.
const reusedValue = 7

// replayLate captures a call of operation o on both ranks, and replays it once. Then it makes the
// steps 1 to 3. Unless hasNoticed is set, rank 1 behaves as if it did not know of the failure.
func replayLate(t *testing.T, o driver.Operation, hasNoticed bool) {
	t.Helper()
	w := newGroup(t, 2, time.Second)
	var l lateReplay
	w.withSum(countFor["bulk"], func(m *testRank, p *repeatedSum) error {
		return l.captureAndReplay(m, p, o)
	})
	w.must(func(m *testRank) error {
		if m.rank == 1 {
			<-w.ranks[0].group.Failed()
			return nil
		}

		if err := l.graphs[0].replayAndWait(); err != nil { // until the kernel times out
			return err
		}

		p := l.sums[0]
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

		if err := l.graphs[1].replayAndWait(); err != nil {
			return err
		}

		return m.checkAllPoison(w, l.sums[1])
	})
	w.must(func(m *testRank) (err error) {
		if m.rank == 0 {
			err = m.checkUnpoisoned(w, l.sums[0], reusedValue)
		}

		return errors.Join(err, l.destroyGraph(t.Context(), m))
	})
}

// captureAndReplay captures a call on buffer p in the rank's graph, and replays it.
func (l *lateReplay) captureAndReplay(m *testRank, p *repeatedSum, o driver.Operation) error {
	call := p.inPlaceCall(o, m.rank)
	work, err := m.group.Offer(call).(*plan).choose()
	if err != nil {
		return err
	}

	if launch := work.(*kernels.Launch); !launch.Bulk {
		return failuref("the call uses kernel %s, want a bulk kernel", launch.Kernel)
	}

	l.sums[m.rank] = p
	if l.graphs[m.rank], err = m.captureForeign(call); err != nil {
		return err
	}

	return l.graphs[m.rank].replayAndWait()
}

// destroyGraph destroys the rank's graph. Its stream must have the group's fault.
func (l *lateReplay) destroyGraph(ctx context.Context, m *testRank) (err error) {
	g := l.graphs[m.rank]
	if fault := g.stream.Synchronize(ctx); fault == nil {
		err = errors.New("Synchronize = nil, want the fault")
	}

	err = errors.Join(err, g.destroy())
	return errors.Join(err, g.closeStream())
}

// clearReport clears the report of this rank, as if it did not contain the failure yet.
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
