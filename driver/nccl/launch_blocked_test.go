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

// A call does not wait for a blocked Send on another stream. Waiting would deadlock:
//
//	rank 0, first stream:  Send 1, call 1, Send 2 (waits for the receipt of message 1)
//	rank 0, second stream: call 2
//	rank 1, first stream:  call 1
//	rank 1, second stream: call 2, Recv 1, Recv 2
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

// prepareBlockedMessage prepares a Send on rank 0 and the matching Recv on rank 1.
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

// replaySends launches the work of rank 0. Both Sends replay one captured graph.
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

// receiveLate launches the calls of rank 1, followed by both receives.
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

// blockedTimeout is the group's timeout.
const blockedTimeout = time.Minute

// A blocked launch on one stream of rank 0 does not block another stream, although the group has
// used both. The launch is blocked because SetCheck makes the ranks compare plain calls beforehand.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	w := newAdditiveGroup(t, 2, blockedTimeout)
	proceed := make(chan struct{}) // closed when rank 1 may launch
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}

		m.group.SetCheck(true)
		if err := p.launch(m.group, other, driver.PathDirect); err != nil {
			return err
		}

		if m.rank == 0 {
			err := m.useDuringLaunch(w, p, other, proceed)
			return errors.Join(err, m.check(w, p, m.stream))
		}

		<-proceed
		err = p.launch(m.group, m.stream, driver.PathPlain)
		err = errors.Join(err, m.check(w, p, m.stream, other))
		return errors.Join(err, other.Close())
	})
}

// useDuringLaunch uses and closes the other stream while a launch on m.stream waits for rank 1. It
// closes proceed to end the launch.
func (m *testRank) useDuringLaunch(
	w *testGroup, p *repeatedSum, other driver.Stream, proceed chan struct{},
) error {
	launchResult := make(chan error, 1)
	go func() { launchResult <- p.launch(m.group, m.stream, driver.PathPlain) }()
	isComparing := func() bool { return m.group.(*communicator).comparer.comparedCall.Load() != nil }
	if err := gpu.Poll(w.t.Context(), isComparing); err != nil {
		close(proceed)
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

// useAndClose calls the methods of s that must not wait for a launch on another stream.
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

// A launch that races with the group's Close does not use the previous call's stream, which is
// closed.
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
		err = p.launch(c, old, driver.PathDirect)
		err = errors.Join(err, m.check(w, p, old))
		c.isClosing.Store(true)
		err = errors.Join(err, second.Launch(old, barrier))
		err = errors.Join(err, old.Synchronize(w.t.Context()))
		err = errors.Join(err, old.Close())
		c.isClosing.Store(false) // as if the next launch had read isClosing before Close set it
		err = errors.Join(err, p.launch(c, m.stream, driver.PathDirect))
		err = errors.Join(err, m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// An abort ends NCCL calls early, but a direct kernel after them still waits for the blocked direct
// kernel before them.
func TestDirectKernelsStayOrderedAfterAbort(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	var launching sync.WaitGroup
	launching.Add(2)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		paths := []driver.Path{
			driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect,
		}
		streams, err := m.newStreams(len(paths))
		if err != nil {
			return err
		}

		m.others = nil // the streams are closed here, where their fault is expected
		for _, s := range streams {
			defer s.Close()
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
		// Long enough for a misordered kernel to end.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		hasRun := gpu.Poll(ctx, streams[3].Idle) == nil
		if hasRun {
			err = errors.New("the second direct kernel ran before the first")
		}

		return errors.Join(err, unblock())
	})
}
