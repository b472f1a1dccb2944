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

// TestCallDoesNotWaitForAReplayedSend launches a graph with a Send on rank 0, before and after a
// collective. The second Send is blocked until rank 1 receives the first message, which it does
// only after a second collective. The second collective must not wait for that Send.
func TestCallDoesNotWaitForAReplayedSend(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		buffer, err := m.mapRegion(8)
		others, streamErr := m.newStreams(1)
		if err = errors.Join(err, streamErr); err != nil {
			return err
		}
		message := driver.Call{
			Operation: driver.Send, DataType: driver.Uint8, Count: 8, Root: 1 - m.rank,
			Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
		}
		if m.rank == 1 {
			message.Operation = driver.Recv
		}
		plan, err := prepare(m.group, message)
		if err != nil {
			return err
		}
		other, first := others[0], m.stream
		launchMessage := func() error { return m.group.Launch(other, plan) }
		if m.rank == 0 {
			g, captureErr := m.captureWork(first, func() error { return m.group.Launch(first, plan) })
			if captureErr != nil {
				return captureErr
			}
			launchMessage = func() error { return g.Launch(first) }
			err = errors.Join(launchMessage(), p.launch(m.group, first, driver.PathDirect), launchMessage())
		} else {
			err = p.launch(m.group, first, driver.PathDirect)
		}
		err = errors.Join(err, p.launch(m.group, other, driver.PathDirect))
		if m.rank == 1 {
			err = errors.Join(err, launchMessage(), launchMessage())
		}
		return errors.Join(err, m.check(w, p, first, other))
	})
}

// blockedTimeout is the timeout of a launch, which ends it.
const blockedTimeout = time.Minute

// TestStreamIsNotBlockedByALaunchOnAnother uses a stream while a launch on another stream waits for
// the peer to compare the call. The group has calls on both streams.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	w := newAdditiveGroup(t, 2, blockedTimeout)
	proceed := make(chan struct{})
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}
		m.group.SetCheck(true)
		if err := p.launch(m.group, other, driver.PathDirect); err != nil {
			return err
		}
		if m.rank == 1 {
			<-proceed
			return errors.Join(p.launch(m.group, m.stream, driver.PathPlain),
				m.check(w, p, m.stream, other), other.Close())
		}
		return errors.Join(m.useDuringLaunch(w, p, other, proceed), m.check(w, p, m.stream))
	})
}

// useDuringLaunch uses the other stream during a launch, which continues once proceed is closed.
func (m *testRank) useDuringLaunch(
	w *testGroup, p *repeatedSum, other driver.Stream, proceed chan struct{},
) error {
	launchResult, useResult := make(chan error, 1), make(chan error, 1)
	go func() { launchResult <- p.launch(m.group, m.stream, driver.PathPlain) }()
	isComparing := func() bool { return m.group.(*communicator).comparer.comparedCall.Load() != nil }
	if err := gpu.Poll(w.t.Context(), isComparing); err != nil {
		return err
	}
	go func() {
		e := m.device.streams.NewEvent()
		err := errors.Join(other.Host(func() {}), other.Record(e), other.Wait(e),
			other.WaitIgnoringErrors(e), other.BeginCapture())
		g, endErr := other.EndCapture()
		if endErr == nil {
			endErr = g.Close()
		}
		useResult <- errors.Join(err, endErr, other.Synchronize(w.t.Context()), other.Close())
	}()
	var err error
	select {
	case err = <-useResult:
	case <-time.After(blockedTimeout / 2):
		err = errors.New("the launch blocks the other stream")
	}
	close(proceed)
	return errors.Join(err, <-launchResult)
}

// TestClosingGroupDoesNotUseAClosedStream closes the stream of a group's latest call, which a
// second group has used as well. A launch that has already checked that the group is open must be
// ordered after that call without using the closed stream.
func TestClosingGroupDoesNotUseAClosedStream(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	ctx, cancel := connectContext(t.Context())
	defer cancel()
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
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
		c := m.group.(*communicator)
		err = errors.Join(p.launch(c, old, driver.PathDirect), m.check(w, p, old))
		c.isClosing.Store(true)
		barrier, prepareErr := prepare(second, driver.Call{
			Operation: driver.Barrier, Path: driver.PathPlain,
		})
		if err = errors.Join(err, prepareErr); err != nil {
			return err
		}
		err = errors.Join(err, second.Launch(old, barrier), old.Synchronize(w.t.Context()), old.Close())
		c.isClosing.Store(false) // as if the next launch had read it before the close
		err = errors.Join(err, p.launch(c, m.stream, driver.PathDirect), m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// TestDirectKernelsStayOrderedAfterAbort queues a blocked direct kernel, two NCCL calls and another
// direct kernel. The kernels must stay in order although an abort ends the NCCL calls.
func TestDirectKernelsStayOrderedAfterAbort(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	var queued sync.WaitGroup
	queued.Add(2)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		streams, err := m.newStreams(4)
		if err != nil {
			return err
		}
		m.others = nil
		for _, s := range streams {
			defer s.Close() // returns the group's fault
		}
		unblock, err := m.blockStream(streams[0].CUDA)
		paths := []driver.Path{driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect}
		for i, path := range paths {
			err = errors.Join(err, p.launch(m.group, streams[i], path))
		}
		queued.Done()
		if queued.Wait(); err != nil {
			return errors.Join(err, unblock())
		}
		m.group.Abort(errAborted)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if gpu.Poll(ctx, streams[3].Idle) == nil {
			err = errors.New("the second direct kernel ran before the first")
		}
		return errors.Join(err, unblock())
	})
}
