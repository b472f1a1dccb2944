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

// Rank 1 replays the graph of a call late, after rank 0 has timed out and reused its buffer. The
// replay must not change that buffer, and fills its own output with poison, a value for missing
// results.
func TestLateReplayDoesNotTouchReusedBuffers(t *testing.T) {
	for _, o := range []driver.Operation{driver.AllReduce, driver.AllGather} {
		for _, hasNoticed := range []bool{true, false} {
			name := fmt.Sprintf("%v/noticed=%v", o, hasNoticed)
			t.Run(name, func(t *testing.T) { replayLate(t, o, hasNoticed) })
		}
	}
}

// inPlaceCall returns an AllReduce or AllGather whose output is the whole buffer of p.
func (p *repeatedSum) inPlaceCall(o driver.Operation, rank int) driver.Call {
	const ranks = 2
	const elementBytes = 4
	call := p.call(driver.PathDirect)
	call.Operation = o
	if o == driver.AllGather {
		call.Count /= ranks
		call.Send += uintptr(int64(rank) * elementBytes * call.Count)
	}

	return call
}

// lateReplay holds captured graphs and their buffers, by rank.
type lateReplay struct {
	graphs [2]*foreignStream
	sums   [2]*repeatedSum
}

// reusedValue is what rank 0 writes to its buffer after the timeout.
const reusedValue = 7

// replayLate tests the late replay of operation o. hasNoticed states whether kernels of rank 1 can
// see that the group has failed.
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

		if err := l.graphs[0].replayAndWait(); err != nil { // the kernel times out
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

func (l *lateReplay) captureAndReplay(m *testRank, p *repeatedSum, o driver.Operation) error {
	call := p.inPlaceCall(o, m.rank)
	work, err := m.group.Offer(call).(*plan).choose()
	if err != nil {
		return err
	}

	if launch := work.(*kernels.Launch); !launch.Bulk {
		return failuref("the call uses kernel %s, want a bulk kernel", launch.Kernel)
	}

	g, err := m.captureForeign(call)
	if err != nil {
		return err
	}

	l.sums[m.rank] = p
	l.graphs[m.rank] = g
	return g.replayAndWait()
}

// destroyGraph destroys the rank's graph, whose stream must have the group's fault.
func (l *lateReplay) destroyGraph(ctx context.Context, m *testRank) (err error) {
	g := l.graphs[m.rank]
	if fault := g.stream.Synchronize(ctx); fault == nil {
		err = errors.New("Synchronize = nil, want the fault")
	}

	err = errors.Join(err, g.destroy())
	return errors.Join(err, g.closeStream())
}

// clearReport clears the memory in which the rank's kernels see that the group has failed.
func (m *testRank) clearReport() error {
	transport, err := m.group.(*communicator).direct.exchange.Transport()
	if err != nil {
		return err
	}

	clear(dl.Bytes(transport.Report, int(unsafe.Sizeof(kernels.Report{}))))
	return nil
}

func (m *testRank) checkUnpoisoned(w *testGroup, p *repeatedSum, want uint32) error {
	poisonCount, err := m.countPoison(w, p, want)
	if err == nil && poisonCount > 0 {
		err = fmt.Errorf("%d elements of the reused buffer are poison, want 0", poisonCount)
	}

	return err
}
