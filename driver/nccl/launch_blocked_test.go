package nccl

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// A call does not wait for a blocked Send on another stream. Otherwise, in this example, call 2
// would wait for Send 2, Send 2 for Recv 1, and Recv 1 for call 2:
//
//	rank 0, first stream:  Send 1, call 1, Send 2 (waits until message 1 has been received)
//	rank 0, second stream: call 2
//	rank 1, first stream:  call 1
//	rank 1, second stream: call 2, Recv 1, Recv 2
func TestCallDoesNotWaitForAReplayedSend(t *testing.T) {
	g := newAdditiveGroup(t, 2, time.Minute)
	g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
		others, err := r.newStreams(1)
		if err != nil {
			return err
		}

		first := r.stream
		second := others[0]
		message, err := r.prepareSendOrRecv()
		if err != nil {
			return err
		}

		launchAll := r.receiveLate
		if r.rank == 0 {
			launchAll = r.replaySends
		}

		err = launchAll(sum, message, first, second)
		return errors.Join(err, r.check(g, sum, first, second))
	})
}

// prepareSendOrRecv prepares a Send on rank 0 and the matching Recv on rank 1.
func (r *testRank) prepareSendOrRecv() (driver.Plan, error) {
	buffer, err := r.mapRegion(messageBytes)
	if err != nil {
		return nil, err
	}

	message := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - r.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	if r.rank == 1 {
		message.Operation = driver.Recv
	}

	return prepare(r.group, message)
}

// replaySends launches the work of rank 0. Each Send replays the same captured graph.
func (r *testRank) replaySends(
	sum *repeatedSum, message driver.Plan, first, second driver.Stream,
) error {
	send, err := r.captureWork(first, func() error { return r.group.Launch(first, message) })
	if err != nil {
		return err
	}

	err = send.Launch(first)
	err = errors.Join(err, sum.launch(r.group, first, driver.PathDirect))
	err = errors.Join(err, send.Launch(first))
	return errors.Join(err, sum.launch(r.group, second, driver.PathDirect))
}

// receiveLate launches the calls of rank 1 before the Recvs.
func (r *testRank) receiveLate(
	sum *repeatedSum, message driver.Plan, first, second driver.Stream,
) error {
	err := sum.launch(r.group, first, driver.PathDirect)
	err = errors.Join(err, sum.launch(r.group, second, driver.PathDirect))
	for range 2 {
		err = errors.Join(err, r.group.Launch(second, message))
	}

	return err
}

const blockedGroupTimeout = time.Minute

// While a launch on one stream is blocked, the group's other stream can be used. SetCheck makes the
// launch on rank 0 wait until rank 1 launches the same call.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	g := newAdditiveGroup(t, 2, blockedGroupTimeout)
	mayLaunch := make(chan struct{}) // closed when rank 1 may launch
	g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
		other, err := r.device.NewStream()
		if err != nil {
			return err
		}

		r.group.SetCheck(true)
		if err := sum.launch(r.group, other, driver.PathDirect); err != nil {
			return err
		}

		if r.rank == 0 {
			err := r.useDuringLaunch(g, sum, other, mayLaunch)
			return errors.Join(err, r.check(g, sum, r.stream))
		}

		<-mayLaunch
		err = sum.launch(r.group, r.stream, driver.PathPlain)
		err = errors.Join(err, r.check(g, sum, r.stream, other))
		return errors.Join(err, other.Close())
	})
}

// useDuringLaunch uses and closes the other stream while a launch on r.stream waits for rank 1.
// It closes mayLaunch to end the launch.
func (r *testRank) useDuringLaunch(
	g *testGroup, sum *repeatedSum, other driver.Stream, mayLaunch chan struct{},
) error {
	launchResult := make(chan error, 1)
	go func() { launchResult <- sum.launch(r.group, r.stream, driver.PathPlain) }()
	comparer := &r.group.(*communicator).comparer
	isComparing := func() bool { return comparer.hostCall.Load() != nil }
	if err := gpu.Poll(g.t.Context(), isComparing); err != nil {
		close(mayLaunch)
		return err
	}

	useResult := make(chan error, 1)
	go func() { useResult <- r.useAndClose(g, other) }()
	var err error
	select {
	case err = <-useResult:
	case <-time.After(blockedGroupTimeout / 2):
		err = errors.New("the launch blocks the other stream")
	}

	close(mayLaunch)
	return errors.Join(err, <-launchResult)
}

// useAndClose calls the methods of s that do not wait for a launch on another stream.
func (r *testRank) useAndClose(g *testGroup, s driver.Stream) error {
	event := r.device.streams.NewEvent()
	err := s.Host(func() {})
	err = errors.Join(err, s.Record(event))
	err = errors.Join(err, s.Wait(event))
	err = errors.Join(err, s.WaitIgnoringErrors(event))
	err = errors.Join(err, s.BeginCapture())
	graph, endErr := s.EndCapture()
	if endErr == nil {
		endErr = graph.Close()
	}

	err = errors.Join(err, endErr)
	err = errors.Join(err, s.Synchronize(g.t.Context()))
	return errors.Join(err, s.Close())
}

// A launch that races with Close of the group does not use the stream of the previous call after
// that stream has been closed.
func TestClosingGroupDoesNotUseAClosedStream(t *testing.T) {
	g := newAdditiveGroup(t, 2, time.Minute)
	ctx, cancel := connectContext(t.Context())
	defer cancel()
	g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
		old, err := r.device.NewStream()
		if err != nil {
			return err
		}

		second, err := r.device.Connect(ctx, driver.GroupConfig{
			ID: "second", Ranks: []int{0, 1}, Rank: r.rank,
		})
		if err != nil {
			return err
		}

		barrier, err := prepare(second, driver.Call{Operation: driver.Barrier, Path: driver.PathPlain})
		if err != nil {
			return err
		}

		c := r.group.(*communicator)
		err = sum.launch(c, old, driver.PathDirect)
		err = errors.Join(err, r.check(g, sum, old))
		c.isClosing.Store(true) // as Close does
		err = errors.Join(err, second.Launch(old, barrier))
		err = errors.Join(err, old.Synchronize(g.t.Context()))
		err = errors.Join(err, old.Close())
		c.isClosing.Store(false) // for a launch that read isClosing before Close set it
		err = errors.Join(err, sum.launch(c, r.stream, driver.PathDirect))
		err = errors.Join(err, r.check(g, sum, r.stream))
		return errors.Join(err, second.Close())
	})
}

// An abort ends NCCL calls early. A direct kernel after these calls still waits for the direct
// kernel before them.
func TestDirectKernelsStayOrderedAfterAbort(t *testing.T) {
	g := newAdditiveGroup(t, 2, time.Minute)
	var launched sync.WaitGroup
	launched.Add(2)
	g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
		paths := []driver.Path{
			driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect,
		}
		streams, err := r.newStreams(len(paths))
		if err != nil {
			return err
		}

		r.others = nil // closed below, where a fault is expected
		for _, s := range streams {
			defer s.Close()
		}

		unblock, err := r.blockStream(streams[0].CUDA)
		for i, path := range paths {
			err = errors.Join(err, sum.launch(r.group, streams[i], path))
		}

		launched.Done()
		launched.Wait()
		if err != nil {
			return errors.Join(err, unblock())
		}

		r.group.Abort(errAborted)
		const patience = 100 * time.Millisecond // enough for a misordered kernel to end
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		last := streams[len(streams)-1]
		if gpu.Poll(ctx, last.Idle) == nil {
			err = errors.New("the second direct kernel ran before the first")
		}

		return errors.Join(err, unblock())
	})
}
