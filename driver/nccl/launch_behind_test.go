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

// TestACallDoesNotWaitForAGraphThatSendsAgain has rank 0 launch a graph with a Send twice, the
// second time behind a call: the stream waits there until rank 1, behind its next call, receives.
func TestACallDoesNotWaitForAGraphThatSendsAgain(t *testing.T) {
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

// TestAStreamIsNotHeldUpByALaunchOnAnother has a rank compare a call, for which the other one takes
// its time, while it queues what may wait for something, captures and ends on another stream that
// has had calls of the group.
func TestAStreamIsNotHeldUpByALaunchOnAnother(t *testing.T) {
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

// meanwhile uses a stream during a launch on that of the rank, which ends when others know.
func (m *testRank) meanwhile(
	w *testGroup, p *power, other driver.Stream, known chan struct{},
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
		err = errors.New("the stream is held up")
	}
	close(known)
	return errors.Join(err, <-launched)
}

// TestAStreamThatEndsIsLeftByAGroupThatIsClosing has another group use the stream of a group's
// latest call, and the stream end, when the group has begun to close. A launch that was let in
// before goes on behind that call, and not on a stream that is no more.
func TestAStreamThatEndsIsLeftByAGroupThatIsClosing(t *testing.T) {
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
		c.closing.Store(false) // which the launch has seen
		err = errors.Join(err, p.raise(c, m.stream, driver.PathDirect), m.check(w, p, m.stream))
		return errors.Join(err, second.Close())
	})
}

// TestTheOrderOfAGroupOutlivesItsAbort ends a group while a call of its own kernels has to wait.
// The next such call has two of NCCL's before it, which NCCL orders, also where it has them end.
func TestTheOrderOfAGroupOutlivesItsAbort(t *testing.T) {
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
			err = errors.New("the last call has run, and the first has not")
		}
		return errors.Join(err, end())
	})
}
