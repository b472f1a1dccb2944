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

// TestCallDoesNotWaitForAReplayedSend checks that a collective does not wait for a blocked Send on
// another stream. Rank 0 launches a graph with a Send twice, before and after a first collective.
// The second Send waits until rank 1 receives the first message. Rank 1 receives it only after a
// second collective, for which rank 0 uses another stream.
func TestCallDoesNotWaitForAReplayedSend(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(1)
		if err != nil {
			return err
		}

		first, second := m.stream, others[0]
		buffer, err := m.mapRegion(messageBytes)
		if err != nil {
			return err
		}

		message := driver.Call{
			Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - m.rank,
			Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
		}
		if m.rank == 1 {
			message.Operation = driver.Recv
		}

		plan, err := prepare(m.group, message)
		if err != nil {
			return err
		}

		if m.rank == 0 {
			send, err := m.captureWork(first, func() error { return m.group.Launch(first, plan) })
			if err != nil {
				return err
			}

			err = send.Launch(first)
			err = errors.Join(err, p.launch(m.group, first, driver.PathDirect))
			err = errors.Join(err, send.Launch(first))
			err = errors.Join(err, p.launch(m.group, second, driver.PathDirect))
			return errors.Join(err, m.check(w, p, first, second))
		}

		err = p.launch(m.group, first, driver.PathDirect)
		err = errors.Join(err, p.launch(m.group, second, driver.PathDirect))
		for range 2 { // receive both messages
			err = errors.Join(err, m.group.Launch(second, plan))
		}

		return errors.Join(err, m.check(w, p, first, second))
	})
}

// blockedTimeout is the group's timeout. A launch that is blocked for longer fails.
const blockedTimeout = time.Minute

// TestStreamIsNotBlockedByALaunchOnAnother uses a stream of rank 0 during a launch on another
// stream. The launch waits for rank 1 to compare the call. The group has calls on both streams.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	w := newAdditiveGroup(t, 2, blockedTimeout)
	proceed := make(chan struct{}) // closed when rank 1 may launch the compared call
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}

		m.group.SetCheck(true) // ranks compare a plain call before they launch it
		if err := p.launch(m.group, other, driver.PathDirect); err != nil {
			return err
		}

		if m.rank == 0 {
			err := m.useDuringLaunch(w, p, other, proceed) // also closes other
			return errors.Join(err, m.check(w, p, m.stream))
		}

		<-proceed
		err = p.launch(m.group, m.stream, driver.PathPlain)
		err = errors.Join(err, m.check(w, p, m.stream, other))
		return errors.Join(err, other.Close())
	})
}

// useDuringLaunch launches a call on m.stream, which waits for rank 1, and meanwhile uses and
// closes the other stream. It then closes proceed and waits for the launch. If the other stream is
// blocked, useDuringLaunch returns an error.
func (m *testRank) useDuringLaunch(
	w *testGroup, p *repeatedSum, other driver.Stream, proceed chan struct{},
) error {
	launchResult, useResult := make(chan error, 1), make(chan error, 1)
	go func() { launchResult <- p.launch(m.group, m.stream, driver.PathPlain) }()
	isComparing := func() bool { return m.group.(*communicator).comparer.comparedCall.Load() != nil }
	if err := gpu.Poll(w.t.Context(), isComparing); err != nil {
		close(proceed) // so that rank 1 does not wait forever
		return err
	}

	go func() { useResult <- m.useAndClose(w, other) }()
	var err error
	select {
	case err = <-useResult:
	case <-time.After(blockedTimeout / 2):
		err = errors.New("the launch blocks the other stream")
	}

	close(proceed)
	return errors.Join(err, <-launchResult)
}

// useAndClose calls each method of a stream that must not wait for a launch on another stream, and
// then closes the stream.
func (m *testRank) useAndClose(w *testGroup, s driver.Stream) error {
	e := m.device.streams.NewEvent()
	err := s.Host(func() {})
	err = errors.Join(err, s.Record(e))
	err = errors.Join(err, s.Wait(e))
	err = errors.Join(err, s.WaitIgnoringErrors(e))
	err = errors.Join(err, s.BeginCapture())
	g, endErr := s.EndCapture()
	if endErr == nil {
		endErr = g.Close()
	}

	err = errors.Join(err, endErr)
	err = errors.Join(err, s.Synchronize(w.t.Context()))
	return errors.Join(err, s.Close())
}

// TestClosingGroupDoesNotUseAClosedStream closes the stream of a group's latest call while the
// group is being closed. A launch that has already checked that the group is open must run after
// the latest call, but must not use the closed stream. A second group has also used the stream.
func TestClosingGroupDoesNotUseAClosedStream(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	ctx, cancel := connectContext(t.Context())
	defer cancel()
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		old, err := m.device.NewStream()
		if err != nil {
			return err
		}

		second, err := m.device.Connect(ctx, driver.GroupConfig{
			ID: "second", Ranks: []int{0, 1}, Rank: m.rank,
		})
		if err != nil {
			return err
		}

		barrier, err := prepare(second, driver.Call{Operation: driver.Barrier, Path: driver.PathPlain})
		if err != nil {
			return err
		}

		c := m.group.(*communicator)
		err = p.launch(c, old, driver.PathDirect) // the group's latest call
		err = errors.Join(err, m.check(w, p, old))
		c.isClosing.Store(true)
		err = errors.Join(err, second.Launch(old, barrier))
		err = errors.Join(err, old.Synchronize(w.t.Context()))
		err = errors.Join(err, old.Close())
		c.isClosing.Store(false) // as if the next launch had read it before isClosing was set
		err = errors.Join(err, p.launch(c, m.stream, driver.PathDirect))
		err = errors.Join(err, m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// TestDirectKernelsStayOrderedAfterAbort queues a blocked direct kernel, two NCCL calls and
// another direct kernel, each on a separate stream. The kernels must stay in order although an
// abort ends the NCCL calls.
func TestDirectKernelsStayOrderedAfterAbort(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	var queued sync.WaitGroup // the ranks that have not queued all calls
	queued.Add(2)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		streams, err := m.newStreams(4)
		if err != nil {
			return err
		}

		m.others = nil // so that the streams are closed only below
		for _, s := range streams {
			defer s.Close() // its error is expected: the group's fault
		}

		unblock, err := m.blockStream(streams[0].CUDA)
		paths := []driver.Path{driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect}
		for i, path := range paths {
			err = errors.Join(err, p.launch(m.group, streams[i], path))
		}

		queued.Done()
		queued.Wait()
		if err != nil {
			return errors.Join(err, unblock())
		}

		m.group.Abort(errAborted)
		// Long enough for a kernel that does not wait for the first one.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if isIdle := gpu.Poll(ctx, streams[3].Idle) == nil; isIdle {
			err = errors.New("the second direct kernel ran before the first")
		}

		return errors.Join(err, unblock())
	})
}
