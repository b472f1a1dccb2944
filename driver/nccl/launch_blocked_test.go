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

// Calls of a group run in the order of their launches, even on different streams. These tests block
// one stream or one launch, and check which other work is blocked by it. A graph contains captured
// calls, which are replayed whenever the graph is launched.

// TestCallDoesNotWaitForAReplayedSend checks that a call does not wait for a blocked Send on
// another stream. The Send is blocked until its message can be received:
//
//	rank 0, first stream:  Send 1, call 1, Send 2 (waits until message 1 is received)
//	rank 0, second stream: call 2
//	rank 1, first stream:  call 1
//	rank 1, second stream: call 2, and then both receives
//
// If call 2 waited for Send 2, no rank could continue. Both Sends of rank 0 replay one graph.
func TestCallDoesNotWaitForAReplayedSend(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(1)
		if err != nil {
			return err
		}

		first := m.stream
		second := others[0]
		message, err := m.prepareBlockedMessage()
		if err != nil {
			return err
		}

		launchAll := m.receiveLate
		if m.rank == 0 {
			launchAll = m.replaySends
		}

		err = launchAll(p, message, first, second)
		return errors.Join(err, m.check(w, p, first, second))
	})
}

// prepareBlockedMessage prepares a Send on rank 0, or a Recv on rank 1.
func (m *testRank) prepareBlockedMessage() (driver.Plan, error) {
	buffer, err := m.mapRegion(messageBytes)
	if err != nil {
		return nil, err
	}

	message := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - m.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	if m.rank == 1 {
		message.Operation = driver.Recv
	}

	return prepare(m.group, message)
}

// replaySends launches the calls and Sends of rank 0.
func (m *testRank) replaySends(
	p *repeatedSum, message driver.Plan, first, second driver.Stream,
) error {
	send, err := m.captureWork(first, func() error { return m.group.Launch(first, message) })
	if err != nil {
		return err
	}

	err = send.Launch(first)
	err = errors.Join(err, p.launch(m.group, first, driver.PathDirect))
	err = errors.Join(err, send.Launch(first))
	return errors.Join(err, p.launch(m.group, second, driver.PathDirect))
}

// receiveLate launches the calls of rank 1 before it receives both messages.
func (m *testRank) receiveLate(
	p *repeatedSum, message driver.Plan, first, second driver.Stream,
) error {
	err := p.launch(m.group, first, driver.PathDirect)
	err = errors.Join(err, p.launch(m.group, second, driver.PathDirect))
	for range 2 {
		err = errors.Join(err, m.group.Launch(second, message))
	}

	return err
}

// blockedTimeout is the group's timeout. A launch that is blocked for longer fails.
const blockedTimeout = time.Minute

// TestStreamIsNotBlockedByALaunchOnAnother uses a stream of rank 0 while a launch on m.stream is
// blocked. Ranks compare a plain call before they launch it, so the launch waits for rank 1. The
// other stream must not wait for the launch, although the group has used both streams.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	w := newAdditiveGroup(t, 2, blockedTimeout)
	proceed := make(chan struct{}) // closed when rank 1 may launch the plain call
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}

		m.group.SetCheck(true) // enables the comparison
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

// useDuringLaunch begins a launch on m.stream, which waits for rank 1. Meanwhile, it uses and
// closes the other stream. If this takes too long, it returns an error. At the end, it closes
// proceed and waits for the launch.
func (m *testRank) useDuringLaunch(
	w *testGroup, p *repeatedSum, other driver.Stream, proceed chan struct{},
) error {
	launchResult := make(chan error, 1)
	go func() { launchResult <- p.launch(m.group, m.stream, driver.PathPlain) }()
	isComparing := func() bool { return m.group.(*communicator).comparer.comparedCall.Load() != nil }
	if err := gpu.Poll(w.t.Context(), isComparing); err != nil {
		close(proceed) // so that rank 1 does not wait forever
		return err
	}

	useResult := make(chan error, 1)
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

// TestClosingGroupDoesNotUseAClosedStream launches a call on a group while another goroutine begins
// to close the group. The launch has already seen that the group is open, so it continues.
//
// The group's previous call was on a stream that has been closed meanwhile. The new call must run
// after the previous call, but must not use the closed stream. A second group has used it, too.
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
		err = p.launch(c, old, driver.PathDirect) // the group's previous call
		err = errors.Join(err, m.check(w, p, old))
		c.isClosing.Store(true)
		err = errors.Join(err, second.Launch(old, barrier))
		err = errors.Join(err, old.Synchronize(w.t.Context()))
		err = errors.Join(err, old.Close())
		c.isClosing.Store(false) // as if the next launch had read it before it was set
		err = errors.Join(err, p.launch(c, m.stream, driver.PathDirect))
		err = errors.Join(err, m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// TestDirectKernelsStayOrderedAfterAbort launches four calls, each on a separate stream: a direct
// kernel on a blocked stream, two NCCL calls, and another direct kernel. An abort ends the NCCL
// calls early, but the second direct kernel must still wait for the first.
func TestDirectKernelsStayOrderedAfterAbort(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	var launching sync.WaitGroup // the ranks that have not launched all calls
	launching.Add(2)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		paths := []driver.Path{
			driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect,
		}
		streams, err := m.newStreams(len(paths))
		if err != nil {
			return err
		}

		m.others = nil // so that the streams are closed only below
		for _, s := range streams {
			defer s.Close() // its error is expected: the group's fault
		}

		unblock, err := m.blockStream(streams[0].CUDA)
		for i, path := range paths {
			err = errors.Join(err, p.launch(m.group, streams[i], path))
		}

		launching.Done()
		launching.Wait()
		if err != nil {
			return errors.Join(err, unblock())
		}

		m.group.Abort(errAborted)
		// Long enough for a kernel that does not wait for the first one.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		hasRun := gpu.Poll(ctx, streams[3].Idle) == nil
		if hasRun {
			err = errors.New("the second direct kernel ran before the first")
		}

		return errors.Join(err, unblock())
	})
}
