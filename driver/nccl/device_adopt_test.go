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
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
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
	theirs, s, err := d.foreign()
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
	err = errors.Join(s.Close(), d.destroy(theirs))
	close(ended)
	asking.Wait()
	return err
}

// TestQuestionsLoseNoCaptureOfTheOwner has the owner of a busy stream capture it again and again
// while it is asked whether its work is done. CUDA loses the capture of a stream that is asked, and
// its driver may crash where that begins or ends just then.
func TestQuestionsLoseNoCaptureOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		return m.captureWhile(w, func(s *stream.Stream) error { s.Idle(); return nil })
	})
}

// TestAWaitLosesNoCaptureOfTheOwner has one thread wait for a stream while its owner captures it.
func TestAWaitLosesNoCaptureOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		var begun sync.Once
		waited := make(chan error, 1)
		err := m.captureWhile(w, func(s *stream.Stream) error {
			begun.Do(func() {
				behind := behindOf(s)
				before := behind.Point()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				go func() { defer cancel(); waited <- s.Synchronize(ctx) }()
				_ = gpu.Poll(ctx, func() bool { return behind.Point() != before })
			})
			s.Idle()
			return nil
		})
		return errors.Join(err, <-waited)
	})
}

// TestAPointInACaptureOfTheOwnerIsNotAsked has waits begin during captures, so that what they
// record is in one now and then. The software GPU tells then; CUDA's driver may crash.
func TestAPointInACaptureOfTheOwnerIsNotAsked(t *testing.T) {
	if !soft(t) {
		t.Skip(fmt.Errorf("recording an event where another thread begins a capture: CUDA's driver may "+
			"crash: %w", driver.ErrUnsupported))
	}
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		return m.captureWhile(w, func(s *stream.Stream) error {
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

// TestCUDALosesNoCaptureToWhatTheBackgroundAsks has CUDA asked the two things that are asked about
// a stream of another library at any time.
func TestCUDALosesNoCaptureToWhatTheBackgroundAsks(t *testing.T) {
	asks := map[string]func(s *stream.Stream) error{
		"about an event of before": func(s *stream.Stream) error {
			_, err := behindOf(s).Query()
			return err
		},
		"whether it is captured": func(s *stream.Stream) error { _, err := s.Captured(); return err },
	}
	for name, ask := range asks {
		t.Run(name, func(t *testing.T) {
			d := alone(t)
			theirs, s, err := d.foreign()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
			err = d.capturesWhile(theirs, func() error { return ask(s) })
			if err := errors.Join(err, s.Close(), d.destroy(theirs)); err != nil {
				t.Error(err)
			}
		})
	}
}

// behindOf is the event of an adopted stream.
func behindOf(s *stream.Stream) *stream.Event {
	behind, _ := new(stream.Event).RecordAfter(s, false)
	return behind
}

// captureWhile has the owner of a stream capture it while it has a collective and is asked, once
// before the first capture.
func (m *testRank) captureWhile(w *testGroup, ask func(s *stream.Stream) error) error {
	b, err := m.busy(w)
	if err != nil {
		return err
	}
	err = ask(b.stream)
	if err == nil {
		err = m.device.capturesWhile(b.theirs, func() error { return ask(b.stream) })
	}
	return errors.Join(err, b.finish(w, b.stream))
}

// capturesWhile has the owner of a stream capture it again and again while two goroutines ask.
func (d *Device) capturesWhile(theirs cuda.Stream, ask func() error) (err error) {
	var asked atomic.Int64
	var ended atomic.Bool
	answers := make(chan error)
	for range 2 {
		go func() {
			var failed error
			for failed == nil && !ended.Load() {
				failed = ask()
				asked.Add(1)
			}
			answers <- failed
		}()
	}
	for captures := 0; err == nil && captures < 1e6 &&
		(captures < 3000 || asked.Load() < 1000); captures++ {
		if lost := d.captureNothing(theirs); lost != nil {
			err = fmt.Errorf("capture %d: %w", captures, lost)
		}
	}
	ended.Store(true)
	return errors.Join(err, <-answers, <-answers)
}

// captureNothing has the owner of a stream capture it, and forget the graph.
func (d *Device) captureNothing(theirs cuda.Stream) error {
	graph, err := d.recordBy(theirs, func() error { return nil })
	if err != nil {
		return err
	}
	return d.gpu.Do(func() error { return d.gpu.CUDA.GraphDestroy(graph) })
}

// busyStream is an adopted stream with a collective that waits until the stream is released.
type busyStream struct {
	*owned
	power   *power
	release func() error
}

// busy makes a stream of another library busy.
func (m *testRank) busy(w *testGroup) (*busyStream, error) {
	all, err := m.newOwned(1)
	if err != nil {
		return nil, err
	}
	b := &busyStream{owned: all[0]}
	if b.power, err = m.newPower(w, 1, 1000); err != nil {
		return nil, err
	}
	if b.release, err = m.occupy(b.theirs); err != nil {
		return nil, err
	}
	return b, b.power.raise(m.group, b.stream, driver.PathDirect)
}

// finish lets the stream go on, checks the sums on a stream, and gives the first one back.
func (b *busyStream) finish(w *testGroup, on driver.Stream) error {
	return errors.Join(b.release(), b.m.check(w, b.power, on), finish(b.owned))
}

// TestEventsMarkWhatCameBeforeACaptureOfTheOwner records one while the owner of a busy stream
// captures it, which the capture must survive, and so must a wait in the capture.
func TestEventsMarkWhatCameBeforeACaptureOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		b, err := m.busy(w)
		if err != nil {
			return err
		}
		e := m.device.streams.NewEvent()
		err = b.capture(func() error {
			return errors.Join(b.stream.Record(e), m.stream.Wait(e), b.stream.Wait(e))
		})
		err = errors.Join(err, b.replay())
		if e.Done() || m.stream.(*stream.Stream).Idle() {
			err = errors.Join(err, errors.New("the event does not mark the work that goes on"))
		}
		return errors.Join(err, b.finish(w, m.stream), e.Synchronize(t.Context()))
	})
}

// recordBy begins and ends a capture of a stream as its owner does.
func (d *Device) recordBy(theirs cuda.Stream, work func() error) (graph cuda.Graph, err error) {
	err = d.gpu.Do(func() error {
		if err := d.gpu.CUDA.BeginCapture(theirs, cuda.CaptureRelaxed); err != nil {
			return err
		}
		failed := work()
		var lost error
		graph, lost = d.gpu.CUDA.EndCapture(theirs)
		return errors.Join(failed, lost)
	})
	return graph, err
}

// TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce: its owner waits for it without us, so who
// heard of it later would have taken what was not computed for a result.
func TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		all, err := m.newOwned(1)
		if err != nil {
			return err
		}
		end, err := m.occupy(all[0].theirs)
		if err != nil {
			return err
		}
		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathPlain,
			Digest: uint64(m.rank),
		})
		err = errors.Join(err, m.group.Launch(all[0].stream, plan))
		if differs := (*driver.MismatchError)(nil); !errors.As(err, &differs) {
			t.Errorf("rank %d launches another call than the other: got %v", m.rank, err)
		}
		return errors.Join(end(), all[0].stream.Synchronize(t.Context()), finish(all...))
	})
}

// TestWorkOfTheHostInACaptureOfTheOwnerIsRefused: it would run in the first replay alone.
func TestWorkOfTheHostInACaptureOfTheOwnerIsRefused(t *testing.T) {
	d := alone(t)
	theirs, s, err := d.foreign()
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.recordBy(theirs, func() error { return s.Host(func() {}) })
	if !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
	if err := errors.Join(s.Close(), d.destroy(theirs)); err != nil {
		t.Error(err)
	}
}

// occupy gives a stream something to wait for until end is called.
func (m *testRank) occupy(s cuda.Stream) (end func() error, err error) {
	d := m.device
	err = d.gpu.Do(func() error {
		word, err := d.gpu.Words.Take(d.gpu.CUDA)
		if err != nil {
			return err
		}
		end = func() error { return d.gpu.Do(func() error { word.Set(1); return nil }) }
		return d.gpu.CUDA.StreamWaitValue(s, word.Address(), 1, cuda.WaitEqual)
	})
	return end, err
}
