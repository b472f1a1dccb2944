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

// Rank 1 replays a graph late, after rank 0 has timed out and reused its own buffer. The replay
// does not change that buffer. It fills the buffer of rank 1 with poison, a value for missing
// results.
func TestLateReplayDoesNotTouchReusedBuffers(t *testing.T) {
	for _, operation := range []driver.Operation{driver.AllReduce, driver.AllGather} {
		for _, hasNoticed := range []bool{true, false} {
			name := fmt.Sprintf("%v/noticed=%v", operation, hasNoticed)
			t.Run(name, func(t *testing.T) { replayLate(t, operation, hasNoticed) })
		}
	}
}

// inPlaceCall returns an AllReduce or AllGather whose output is the whole buffer of s.
func (s *repeatedSum) inPlaceCall(operation driver.Operation, rank int) driver.Call {
	const ranks = 2
	call := s.call(driver.PathDirect)
	call.Operation = operation
	if operation == driver.AllGather {
		call.Count /= ranks
		call.Send += uintptr(int64(rank) * int32Bytes * call.Count)
	}

	return call
}

// lateReplay holds captured graphs and their buffers, by rank.
type lateReplay struct {
	graphs [2]*foreignStream
	sums   [2]*repeatedSum
}

// replayLate tests the late replay of an operation. hasNoticed says whether the kernels of rank 1
// can see that the group has failed.
func replayLate(t *testing.T, operation driver.Operation, hasNoticed bool) {
	t.Helper()
	const reusedValue = 7
	g := newGroup(t, 2, time.Second)
	var l lateReplay
	g.withSum(countFor["bulk"], func(r *testRank, sum *repeatedSum) error {
		return l.captureAndReplay(r, sum, operation)
	})
	g.must(func(r *testRank) error {
		if r.rank == 1 {
			<-g.ranks[0].group.Failed()
			return nil
		}

		if err := l.graphs[0].replayAndWait(); err != nil { // the kernel times out
			return err
		}

		reused := l.sums[0]
		return r.setElements(g, reused.region, int32Bytes*reused.count, reusedValue)
	})
	g.must(func(r *testRank) error {
		if r.rank == 0 {
			return nil
		}

		<-r.group.(*communicator).stages.kernelsEnded
		if !hasNoticed {
			if err := r.clearReport(); err != nil {
				return err
			}
		}

		if err := l.graphs[1].replayAndWait(); err != nil {
			return err
		}

		return r.checkAllPoison(g, l.sums[1])
	})
	g.must(func(r *testRank) (err error) {
		if r.rank == 0 {
			err = r.checkUnpoisoned(g, l.sums[0], reusedValue)
		}

		return errors.Join(err, l.destroyGraph(t.Context(), r))
	})
}

// captureAndReplay captures a call and replays it once in time.
func (l *lateReplay) captureAndReplay(
	r *testRank, sum *repeatedSum, operation driver.Operation,
) error {
	call := sum.inPlaceCall(operation, r.rank)
	work, err := r.group.Offer(call).(*plan).choose()
	if err != nil {
		return err
	}

	if launch := work.(*kernels.Launch); !launch.Bulk {
		return failuref("the call uses kernel %s, want a bulk kernel", launch.Kernel)
	}

	graph, err := r.captureForeign(call)
	if err != nil {
		return err
	}

	l.sums[r.rank] = sum
	l.graphs[r.rank] = graph
	return graph.replayAndWait()
}

// destroyGraph checks that the stream of the rank's graph has a fault, and destroys both.
func (l *lateReplay) destroyGraph(ctx context.Context, r *testRank) (err error) {
	graph := l.graphs[r.rank]
	if fault := graph.stream.Synchronize(ctx); fault == nil {
		err = errors.New("Synchronize = nil, want the fault")
	}

	err = errors.Join(err, graph.destroy())
	return errors.Join(err, graph.closeStream())
}

// clearReport clears the memory in which the kernels of the rank see that the group has failed.
func (r *testRank) clearReport() error {
	transport, err := r.group.(*communicator).direct.exchange.Transport()
	if err != nil {
		return err
	}

	clear(dl.Bytes(transport.Report, int(unsafe.Sizeof(kernels.Report{}))))
	return nil
}

func (r *testRank) checkUnpoisoned(g *testGroup, sum *repeatedSum, want uint32) error {
	poisonCount, err := r.countPoison(g, sum, want)
	if err == nil && poisonCount > 0 {
		err = fmt.Errorf("%d elements of the reused buffer are poison, want 0", poisonCount)
	}

	return err
}
