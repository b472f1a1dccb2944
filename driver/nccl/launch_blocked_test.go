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

// TestCallDoesNotWaitForAReplayedSend launches a graph with a Send on rank 0 twice, the second time
// after a call. The second launch waits until rank 1 receives, which it does after its next call.
func TestCallDoesNotWaitForAReplayedSend(t *testing.T) {
	w := newSteps(t, 2, 10*time.Second)
	w.withPower(1000, func(m *testRank, p *power) error {
		mailed, err := m.grow(8)
		others, failed := m.newStreams(1)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		message := driver.Call{
			Operation: driver.Send, DataType: driver.Uint8, Count: 8, Root: 1 - m.rank,
			Send: mailed.segment.Address(), Recv: mailed.segment.Address(),
		}
		if m.rank == 1 {
			message.Operation = driver.Recv
		}
		plan, err := prepare(m.group, message)
		if err != nil {
			return err
		}
		other, first := others[0], m.stream
		mail := func() error { return m.group.Launch(other, plan) }
		if m.rank == 0 {
			g, failed := m.captured(first, func() error { return m.group.Launch(first, plan) })
			if failed != nil {
				return failed
			}
			mail = func() error { return g.Launch(first) }
			err = errors.Join(mail(), p.raise(m.group, first, driver.PathDirect), mail())
		} else {
			err = p.raise(m.group, first, driver.PathDirect)
		}
		err = errors.Join(err, p.raise(m.group, other, driver.PathDirect))
		if m.rank == 1 {
			err = errors.Join(err, mail(), mail())
		}
		return errors.Join(err, m.check(w, p, first, other))
	})
}

// TestStreamIsNotBlockedByALaunchOnAnother uses a stream with earlier calls of a group, in a
// capture and otherwise, while a launch on another stream waits for the other rank to compare its
// call.
func TestStreamIsNotBlockedByALaunchOnAnother(t *testing.T) {
	w := newSteps(t, 2, time.Minute)
	begun := make(chan struct{})
	w.withPower(1000, func(m *testRank, p *power) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}
		m.group.SetCheck(true)
		if err := p.raise(m.group, other, driver.PathDirect); err != nil {
			return err
		}
		if m.rank == 1 {
			<-begun
			return errors.Join(p.raise(m.group, m.stream, driver.PathPlain),
				m.check(w, p, m.stream, other), other.Close())
		}
		return errors.Join(m.meanwhile(w, p, other, begun), m.check(w, p, m.stream))
	})
}

// meanwhile uses a stream during a launch on the rank's stream, and then closes proceed to let the
// launch continue.
func (m *testRank) meanwhile(
	w *testGroup, p *power, other driver.Stream, proceed chan struct{},
) error {
	launched, used := make(chan error, 1), make(chan error, 1)
	go func() { launched <- p.raise(m.group, m.stream, driver.PathPlain) }()
	compares := func() bool { return m.group.(*communicator).comparer.call.Load() != nil }
	if err := gpu.Poll(w.t.Context(), compares); err != nil {
		return err
	}
	go func() {
		e := m.device.streams.NewEvent()
		err := errors.Join(other.Host(func() {}), other.Record(e), other.Wait(e), other.WaitOnly(e),
			other.BeginCapture())
		g, failed := other.EndCapture()
		if failed == nil {
			failed = g.Close()
		}
		used <- errors.Join(err, failed, other.Synchronize(w.t.Context()), other.Close())
	}()
	var err error
	select {
	case err = <-used:
	case <-time.After(5 * time.Second):
		err = errors.New("the stream is blocked")
	}
	close(proceed)
	return errors.Join(err, <-launched)
}

// TestClosingGroupDoesNotUseAClosedStream closes the stream of a group's latest call, after another
// group has used it, while the group is being closed. A launch that was admitted before must be
// ordered after that call without using the closed stream.
func TestClosingGroupDoesNotUseAClosedStream(t *testing.T) {
	w := newSteps(t, 2, time.Minute)
	ctx, cancel := connecting(t.Context())
	defer cancel()
	w.withPower(1000, func(m *testRank, p *power) error {
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
		err = errors.Join(p.raise(c, old, driver.PathDirect), m.check(w, p, old))
		c.closing.Store(true)
		barrier, failed := prepare(second, driver.Call{Operation: driver.Barrier, Path: driver.PathPlain})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		err = errors.Join(err, second.Launch(old, barrier), old.Synchronize(w.t.Context()), old.Close())
		c.closing.Store(false) // as the launch has read it before
		err = errors.Join(err, p.raise(c, m.stream, driver.PathDirect), m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// TestOrderOfAGroupOutlivesItsAbort aborts a group while a direct kernel is blocked. The next
// direct kernel is queued after two calls of NCCL, which NCCL orders, and which the abort ends.
func TestOrderOfAGroupOutlivesItsAbort(t *testing.T) {
	w := newSteps(t, 2, time.Minute)
	var queued sync.WaitGroup
	queued.Add(2)
	w.withPower(1000, func(m *testRank, p *power) error {
		streams, err := m.newStreams(4)
		if err != nil {
			return err
		}
		m.others = nil
		for _, s := range streams {
			defer s.Close() // with the error of the group
		}
		end, err := m.occupy(streams[0].CUDA)
		paths := []driver.Path{driver.PathDirect, driver.PathPlain, driver.PathPlain, driver.PathDirect}
		for i, path := range paths {
			err = errors.Join(err, p.raise(m.group, streams[i], path))
		}
		queued.Done()
		if queued.Wait(); err != nil {
			return errors.Join(err, end())
		}
		m.group.Abort(errors.New("enough"))
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if gpu.Poll(soon, streams[3].Idle) == nil {
			err = errors.New("the last call has run before the first")
		}
		return errors.Join(err, end())
	})
}
