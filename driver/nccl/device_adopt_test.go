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

// TestClosedStreamsAreNotQueried destroys streams as soon as they are closed, as their owner may,
// while goroutines ask whether they are captured. CUDA crashes if it is queried about a destroyed
// stream.
func TestClosedStreamsAreNotQueried(t *testing.T) {
	d := alone(t)
	for range 300 {
		if err := closeWhileQueried(d); err != nil {
			t.Fatal(err)
		}
	}
}

// closeWhileQueried adopts a stream, and closes and destroys it while goroutines query it.
func closeWhileQueried(d *Device) error {
	theirs, s, err := d.foreign()
	if err != nil {
		return err
	}
	var querying sync.WaitGroup
	ended := make(chan struct{})
	for range 4 {
		querying.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					_, _ = s.Captured() // only the query matters
				}
			}
		})
	}
	err = errors.Join(s.Close(), d.destroy(theirs))
	close(ended)
	querying.Wait()
	return err
}

// TestIdleKeepsCapturesOfTheOwner captures a busy stream repeatedly, as its owner, while Idle is
// called. CUDA would invalidate the capture of a stream that is queried, and its driver may crash
// if the capture begins or ends at that moment.
func TestIdleKeepsCapturesOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		return m.captureWhile(w, func(s *stream.Stream) error { s.Idle(); return nil })
	})
}

// TestSynchronizeKeepsCapturesOfTheOwner waits for a stream while its owner captures it.
func TestSynchronizeKeepsCapturesOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		var begun sync.Once
		waited := make(chan error, 1)
		err := m.captureWhile(w, func(s *stream.Stream) error {
			begun.Do(func() {
				queued := queuedEvent(s)
				before := queued.Point()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				go func() { defer cancel(); waited <- s.Synchronize(ctx) }()
				_ = gpu.Poll(ctx, func() bool { return queued.Point() != before })
			})
			s.Idle()
			return nil
		})
		return errors.Join(err, <-waited)
	})
}

// TestPointsInACaptureOfTheOwnerAreNotQueried starts waits during captures, so that the points that
// they record sometimes land in one. The software GPU reports a query of such a point; CUDA's
// driver may crash.
func TestPointsInACaptureOfTheOwnerAreNotQueried(t *testing.T) {
	if !soft(t) {
		t.Skip(fmt.Errorf("recording an event while another thread begins a capture may crash CUDA's "+
			"driver: %w", driver.ErrUnsupported))
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

// TestCUDAKeepsCapturesDuringQueries makes the two queries about a stream of another library that
// symmem makes at any time.
func TestCUDAKeepsCapturesDuringQueries(t *testing.T) {
	queries := map[string]func(s *stream.Stream) error{
		"earlier event": func(s *stream.Stream) error {
			_, err := queuedEvent(s).Query()
			return err
		},
		"capture status": func(s *stream.Stream) error { _, err := s.Captured(); return err },
	}
	for name, query := range queries {
		t.Run(name, func(t *testing.T) {
			d := alone(t)
			theirs, s, err := d.foreign()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
			err = d.capturesWhile(theirs, func() error { return query(s) })
			if err := errors.Join(err, s.Close(), d.destroy(theirs)); err != nil {
				t.Error(err)
			}
		})
	}
}

// queuedEvent returns the event of an adopted stream.
func queuedEvent(s *stream.Stream) *stream.Event {
	e, _ := new(stream.Event).RecordAfter(s, false)
	return e
}

// captureWhile captures a stream with an unfinished collective, as its owner, while it is queried.
// The first query is made before the first capture.
func (m *testRank) captureWhile(w *testGroup, query func(s *stream.Stream) error) error {
	b, err := m.busy(w)
	if err != nil {
		return err
	}
	err = query(b.stream)
	if err == nil {
		err = m.device.capturesWhile(b.theirs, func() error { return query(b.stream) })
	}
	return errors.Join(err, b.finish(w, b.stream))
}

// capturesWhile captures a stream repeatedly, as its owner, while two goroutines query it.
func (d *Device) capturesWhile(theirs cuda.Stream, query func() error) (err error) {
	var queries atomic.Int64
	var ended atomic.Bool
	results := make(chan error)
	for range 2 {
		go func() {
			var failed error
			for failed == nil && !ended.Load() {
				failed = query()
				queries.Add(1)
			}
			results <- failed
		}()
	}
	for captures := 0; err == nil && captures < 1e6 &&
		(captures < 3000 || queries.Load() < 1000); captures++ {
		if lost := d.captureNothing(theirs); lost != nil {
			err = fmt.Errorf("capture %d: %w", captures, lost)
		}
	}
	ended.Store(true)
	return errors.Join(err, <-results, <-results)
}

// captureNothing captures no work on a stream, as its owner, and destroys the graph.
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

// finish releases the stream, checks the sums on another stream, and closes the first one.
func (b *busyStream) finish(w *testGroup, on driver.Stream) error {
	return errors.Join(b.release(), b.m.check(w, b.power, on), finish(b.owned))
}

// TestEventsMarkWorkBeforeACaptureOfTheOwner records an event while the owner of a busy stream
// captures it, and waits for it in the capture. The capture must stay valid.
func TestEventsMarkWorkBeforeACaptureOfTheOwner(t *testing.T) {
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
			err = errors.Join(err, errors.New("the event does not mark the unfinished work"))
		}
		return errors.Join(err, b.finish(w, m.stream), e.Synchronize(t.Context()))
	})
}

// recordBy captures work on a stream, as its owner.
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

// TestLaunchOnABusyAdoptedStreamReturnsRefusals refuses a call on a busy stream of another library.
// Its owner waits for it without calling symmem, so the error must not wait for Synchronize.
func TestLaunchOnABusyAdoptedStreamReturnsRefusals(t *testing.T) {
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

// TestHostInACaptureOfTheOwnerIsRefused checks that a host function, which would run only in the
// first replay, is refused.
func TestHostInACaptureOfTheOwnerIsRefused(t *testing.T) {
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

// occupy makes a stream wait until end is called.
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
