package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// TestNobodyAsksAboutAStreamThatWasGivenBack destroys streams as their owner may, as soon as they
// are closed, while others ask whether they are captured. CUDA does not survive a question about a
// stream that is gone.
func TestNobodyAsksAboutAStreamThatWasGivenBack(t *testing.T) {
	d := alone(t)
	for range 300 {
		if err := giveBack(d); err != nil {
			t.Fatal(err)
		}
	}
}

// giveBack adopts a stream, and closes and destroys it while goroutines ask about it.
func giveBack(d *Device) error {
	var theirs cuda.Stream
	err := d.do(func() (err error) {
		theirs, err = d.cuda.StreamCreate(true)
		return err
	})
	if err != nil {
		return err
	}
	s, err := d.AdoptStream(uintptr(theirs))
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	ended := make(chan struct{})
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					_, _ = s.Captured() // that it is asked at all is what matters
				}
			}
		})
	}
	err = errors.Join(s.Close(), d.do(func() error { return d.cuda.StreamDestroy(theirs) }))
	close(ended)
	asking.Wait()
	return err
}

// TestQuestionsLoseNoCaptureOfTheOwner has the owner of a busy stream capture it again and again
// while it is asked whether its work is done. CUDA loses the capture of a stream that is asked, and
// its driver may crash where that begins or ends just then.
func TestQuestionsLoseNoCaptureOfTheOwner(t *testing.T) {
	w := newTeam(t, 2, time.Minute)
	w.play(0, 1)
	w.must(func(m *mate) error {
		return m.captureWhile(w, func(s *stream) error { s.idle(); return nil })
	})
}

// TestAWaitLosesNoCaptureOfTheOwner has one thread wait for a stream while its owner captures it.
func TestAWaitLosesNoCaptureOfTheOwner(t *testing.T) {
	w := newTeam(t, 2, time.Minute)
	w.play(0, 1)
	w.must(func(m *mate) error {
		var begun sync.Once
		waited := make(chan error, 1)
		err := m.captureWhile(w, func(s *stream) error {
			begun.Do(func() {
				before := s.behind.point()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				go func() { defer cancel(); waited <- s.Synchronize(ctx) }()
				_ = poll(ctx, func() bool { return s.behind.point() != before })
			})
			s.idle()
			return nil
		})
		return errors.Join(err, <-waited)
	})
}

// TestAPointInACaptureOfTheOwnerIsNotAsked has waits begin beside captures, so that what they
// record is in one now and then. The software GPU tells then; CUDA's driver may crash.
func TestAPointInACaptureOfTheOwnerIsNotAsked(t *testing.T) {
	if !soft(t) {
		t.Skip("recording an event where a capture begins on another thread may crash CUDA's driver")
	}
	w := newTeam(t, 2, time.Minute)
	w.play(0, 1)
	w.must(func(m *mate) error {
		return m.captureWhile(w, func(s *stream) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
			defer cancel()
			err := s.Synchronize(ctx)
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrCapturing) {
				return nil
			}
			return fmt.Errorf("synchronizing a stream that has work: %w", err)
		})
	})
}

// captureWhile has the owner of a stream capture it while it has a collective and is asked, once
// before the first capture.
func (m *mate) captureWhile(w *team, ask func(s *stream) error) error {
	p, err := m.newPower(w, 1, 1000)
	if err != nil {
		return err
	}
	theirs, adopted, err := m.adopt(1)
	if err != nil {
		return err
	}
	end, err := m.occupy(theirs[0])
	if err != nil {
		return err
	}
	s := adopted[0].(*stream)
	err = errors.Join(p.raise(m.group, s, driver.PathDirect), ask(s))
	var asked atomic.Int64
	var ended atomic.Bool
	answers := make(chan error)
	for range 2 {
		go func() {
			var failed error
			for failed == nil && !ended.Load() {
				failed = ask(s)
				asked.Add(1)
			}
			answers <- failed
		}()
	}
	for captures := 0; err == nil && captures < 1e6 &&
		(captures < 3000 || asked.Load() < 1000); captures++ {
		if lost := m.captureNothing(theirs[0]); lost != nil {
			err = fmt.Errorf("capture %d: %w", captures, lost)
		}
	}
	ended.Store(true)
	return errors.Join(err, <-answers, <-answers, end(), m.check(w, p, s), s.Close(),
		m.device.do(func() error { return m.device.cuda.StreamDestroy(theirs[0]) }))
}

// captureNothing has the owner of a stream capture it, and forget the graph.
func (m *mate) captureNothing(theirs cuda.Stream) error {
	graph, err := m.recordBy(theirs, func() error { return nil })
	if err != nil {
		return err
	}
	return m.device.do(func() error { return m.device.cuda.GraphDestroy(graph) })
}

// TestEventsMarkWhatCameBeforeACaptureOfTheOwner records one while the owner of a busy stream
// captures it, which the capture must survive, and so must a wait in the capture.
func TestEventsMarkWhatCameBeforeACaptureOfTheOwner(t *testing.T) {
	w := newTeam(t, 2, time.Minute)
	w.play(0, 1)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 1000)
		if err != nil {
			return err
		}
		theirs, adopted, err := m.adopt(1)
		if err != nil {
			return err
		}
		end, err := m.occupy(theirs[0])
		if err != nil {
			return err
		}
		e, err := m.device.NewEvent()
		err = errors.Join(err, p.raise(m.group, adopted[0], driver.PathDirect),
			m.captureBy(theirs[0], func() error {
				return errors.Join(adopted[0].Record(e), m.stream.Wait(e), adopted[0].Wait(e))
			}))
		if e.Done() || m.stream.(*stream).idle() {
			err = errors.Join(err, errors.New("the event does not mark the work that goes on"))
		}
		return errors.Join(err, end(), e.Synchronize(t.Context()), m.check(w, p, m.stream),
			adopted[0].Close(),
			m.device.do(func() error { return m.device.cuda.StreamDestroy(theirs[0]) }))
	})
}

// captureBy launches what the owner of a stream has captured on it.
func (m *mate) captureBy(theirs cuda.Stream, work func() error) error {
	graph, err := m.recordBy(theirs, work)
	if err != nil {
		return err
	}
	d := m.device
	return d.do(func() error {
		exec, err := d.cuda.GraphInstantiate(graph)
		if err != nil {
			return err
		}
		return errors.Join(d.cuda.GraphLaunch(exec, theirs), d.cuda.GraphExecDestroy(exec),
			d.cuda.GraphDestroy(graph))
	})
}

// recordBy begins and ends a capture of a stream as its owner does.
func (m *mate) recordBy(theirs cuda.Stream, work func() error) (graph cuda.Graph, err error) {
	d := m.device
	err = d.do(func() error {
		if err := d.cuda.BeginCapture(theirs, cuda.CaptureRelaxed); err != nil {
			return err
		}
		failed := work()
		var lost error
		graph, lost = d.cuda.EndCapture(theirs)
		return errors.Join(failed, lost)
	})
	return graph, err
}

// TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce: its owner waits for it without us, so who
// heard of it later would have taken what was not computed for a result.
func TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce(t *testing.T) {
	w := newTeam(t, 2, 20*time.Second)
	w.play(0, 1)
	w.must(func(m *mate) error {
		theirs, adopted, err := m.adopt(1)
		if err != nil {
			return err
		}
		end, err := m.occupy(theirs[0])
		if err != nil {
			return err
		}
		plan, err := m.group.Prepare(driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathPlain,
			Digest: uint64(m.rank),
		})
		err = errors.Join(err, m.group.Launch(adopted[0], plan))
		if differs := (*driver.MismatchError)(nil); !errors.As(err, &differs) {
			t.Errorf("rank %d launches another call than the other: got %v", m.rank, err)
		}
		return errors.Join(end(), adopted[0].Synchronize(t.Context()), adopted[0].Close(),
			m.device.do(func() error { return m.device.cuda.StreamDestroy(theirs[0]) }))
	})
}

// occupy gives a stream something to wait for until end is called.
func (m *mate) occupy(s cuda.Stream) (end func() error, err error) {
	d := m.device
	err = d.do(func() error {
		word, err := d.words.take(d.cuda)
		if err != nil {
			return err
		}
		end = func() error { return d.do(func() error { word.set(1); return nil }) }
		return d.cuda.StreamWaitValue(s, word.address(), 1, cuda.WaitEqual)
	})
	return end, err
}
