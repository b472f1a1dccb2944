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

// TestClosedStreamsAreNotQueried closes adopted streams and immediately destroys them, as their
// owner may do, while goroutines query the streams' capture status. CUDA crashes if a destroyed
// stream is queried.
func TestClosedStreamsAreNotQueried(t *testing.T) {
	d := openSingleRank(t)
	for range 300 {
		if err := closeWhileQueried(d); err != nil {
			t.Fatal(err)
		}
	}
}

func closeWhileQueried(d *Device) error {
	cudaStream, s, err := d.newForeignStream()
	if err != nil {
		return err
	}

	var querying sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		querying.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = s.IsCapturing() // the result does not matter
				}
			}
		})
	}

	err = errors.Join(s.Close(), d.destroy(cudaStream))
	close(stop)
	querying.Wait()
	return err
}

// TestIdleKeepsCapturesOfTheOwner plays the owner of a busy adopted stream and captures it
// repeatedly while other goroutines call Idle. A CUDA query of the stream would invalidate the
// capture, or could crash the driver while the capture begins or ends.
func TestIdleKeepsCapturesOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		return m.captureBusyStream(w, func(s *stream.Stream) error { s.Idle(); return nil })
	})
}

// TestSynchronizeKeepsCapturesOfTheOwner waits for a stream while its owner captures it.
func TestSynchronizeKeepsCapturesOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		var startWait sync.Once
		waited := make(chan error, 1)
		err := m.captureBusyStream(w, func(s *stream.Stream) error {
			startWait.Do(func() {
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

// TestPointsInACaptureOfTheOwnerAreNotQueried waits for a stream during captures, so that some of
// the events that mark the end of its work (points) are captured. If a captured event is queried,
// the software GPU reports it, whereas CUDA's driver may crash.
func TestPointsInACaptureOfTheOwnerAreNotQueried(t *testing.T) {
	if !usesSoftGPU(t) {
		t.Skip(fmt.Errorf("recording an event while another thread begins a capture may crash CUDA's "+
			"driver: %w", driver.ErrUnsupported))
	}

	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		return m.captureBusyStream(w, func(s *stream.Stream) error {
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

// TestCUDAKeepsCapturesDuringQueries checks that captures survive the two queries that symmem may
// make about another library's stream at any time.
func TestCUDAKeepsCapturesDuringQueries(t *testing.T) {
	queries := map[string]func(s *stream.Stream) error{
		"earlier event": func(s *stream.Stream) error {
			_, err := queuedEvent(s).Query()
			return err
		},
		"capture status": func(s *stream.Stream) error { _, err := s.IsCapturing(); return err },
	}
	for name, query := range queries {
		t.Run(name, func(t *testing.T) {
			d := openSingleRank(t)
			cudaStream, s, err := d.newForeignStream()
			if err != nil {
				t.Fatal(err)
			}

			if err := s.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}

			err = d.captureRepeatedly(cudaStream, func() error { return query(s) })
			if err := errors.Join(err, s.Close(), d.destroy(cudaStream)); err != nil {
				t.Error(err)
			}
		})
	}
}

// queuedEvent returns the event that marks the end of the work on an adopted stream.
func queuedEvent(s *stream.Stream) *stream.Event {
	e, _ := new(stream.Event).RecordOrBorrow(s)
	return e
}

// captureBusyStream plays the owner of a busy adopted stream. It calls query once, and then
// captures the stream repeatedly while goroutines call query.
func (m *testRank) captureBusyStream(w *testGroup, query func(s *stream.Stream) error) error {
	b, err := m.newBusyStream(w)
	if err != nil {
		return err
	}

	err = query(b.stream)
	if err == nil {
		err = m.device.captureRepeatedly(b.cudaStream, func() error { return query(b.stream) })
	}

	return errors.Join(err, b.finish(w, b.stream))
}

// captureRepeatedly plays the owner of a stream and captures it repeatedly while two goroutines
// call query.
func (d *Device) captureRepeatedly(cudaStream cuda.Stream, query func() error) (err error) {
	var queries atomic.Int64
	var done atomic.Bool
	results := make(chan error)
	for range 2 {
		go func() {
			var queryErr error
			for queryErr == nil && !done.Load() {
				queryErr = query()
				queries.Add(1)
			}

			results <- queryErr
		}()
	}

	for captures := 0; err == nil && captures < 1e6 &&
		(captures < 3000 || queries.Load() < 1000); captures++ {
		if captureErr := d.captureEmptyGraph(cudaStream); captureErr != nil {
			err = fmt.Errorf("capture %d: %w", captures, captureErr)
		}
	}

	done.Store(true)
	return errors.Join(err, <-results, <-results)
}

// captureEmptyGraph plays the owner of a stream, captures an empty graph on it, and destroys the
// graph.
func (d *Device) captureEmptyGraph(cudaStream cuda.Stream) error {
	graph, err := d.captureAsOwner(cudaStream, func() error { return nil })
	if err != nil {
		return err
	}

	return d.gpu.Do(func() error { return d.gpu.CUDA.GraphDestroy(graph) })
}

// busyStream is a stream of another library with a collective that waits until release is called.
type busyStream struct {
	*foreignStream
	sum     *repeatedSum
	release func() error
}

// newBusyStream returns a stream of another library with an unfinished collective.
func (m *testRank) newBusyStream(w *testGroup) (*busyStream, error) {
	foreign, err := m.newForeignStreams(1)
	if err != nil {
		return nil, err
	}

	b := &busyStream{foreignStream: foreign[0]}
	if b.sum, err = m.newRepeatedSum(w, windowName, smallCount); err != nil {
		return nil, err
	}

	if b.release, err = m.blockStream(b.cudaStream); err != nil {
		return nil, err
	}

	return b, b.sum.launch(m.group, b.stream, driver.PathDirect)
}

// finish unblocks the busy stream, waits for s, checks the sums, and closes the busy stream.
func (b *busyStream) finish(w *testGroup, s driver.Stream) error {
	return errors.Join(b.release(), b.m.check(w, b.sum, s), finish(b.foreignStream))
}

// TestEventsMarkWorkBeforeACaptureOfTheOwner records an event on a busy stream while its owner
// captures it, and then makes the captured stream wait for the event. The capture must stay valid.
func TestEventsMarkWorkBeforeACaptureOfTheOwner(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.must(func(m *testRank) error {
		b, err := m.newBusyStream(w)
		if err != nil {
			return err
		}

		e := m.device.streams.NewEvent()
		err = b.capture(func() error {
			return errors.Join(b.stream.Record(e), m.stream.Wait(e), b.stream.Wait(e))
		})
		err = errors.Join(err, b.replay())
		if e.Done() || m.stream.(*stream.Stream).Idle() {
			err = errors.Join(err, errors.New("the event does not wait for the unfinished work"))
		}

		return errors.Join(err, b.finish(w, m.stream), e.Synchronize(t.Context()))
	})
}

// captureAsOwner plays the owner of a stream and captures work on it.
func (d *Device) captureAsOwner(
	cudaStream cuda.Stream, work func() error,
) (graph cuda.Graph, err error) {
	err = d.gpu.Do(func() error {
		if err := d.gpu.CUDA.BeginCapture(cudaStream, cuda.CaptureRelaxed); err != nil {
			return err
		}

		workErr := work()
		var endErr error
		graph, endErr = d.gpu.CUDA.EndCapture(cudaStream)
		return errors.Join(workErr, endErr)
	})
	return graph, err
}

// TestLaunchOnABusyAdoptedStreamReturnsRefusals launches mismatched calls on a busy stream of
// another library. Launch must return the error itself rather than leave it to Synchronize,
// because the owner may wait for the stream without calling symmem.
func TestLaunchOnABusyAdoptedStreamReturnsRefusals(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		unblock, err := m.blockStream(foreign[0].cudaStream)
		if err != nil {
			return err
		}

		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathPlain,
			Digest: uint64(m.rank),
		})
		err = errors.Join(err, m.group.Launch(foreign[0].stream, plan))
		if mismatch := (*driver.MismatchError)(nil); !errors.As(err, &mismatch) {
			t.Errorf("Launch of a mismatched call on rank %d = %v, want a MismatchError", m.rank, err)
		}

		return errors.Join(unblock(), foreign[0].stream.Synchronize(t.Context()), finish(foreign...))
	})
}

// TestHostInACaptureOfTheOwnerIsRefused checks that Host returns an error during a capture by the
// stream's owner. The function would run only in the first replay.
func TestHostInACaptureOfTheOwnerIsRefused(t *testing.T) {
	d := openSingleRank(t)
	cudaStream, s, err := d.newForeignStream()
	if err != nil {
		t.Fatal(err)
	}

	_, err = d.captureAsOwner(cudaStream, func() error { return s.Host(func() {}) })
	if !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Host = %v, want ErrUnsupported", err)
	}

	if err := errors.Join(s.Close(), d.destroy(cudaStream)); err != nil {
		t.Error(err)
	}
}

// blockStream makes a stream wait until unblock is called.
func (m *testRank) blockStream(s cuda.Stream) (unblock func() error, err error) {
	d := m.device
	err = d.gpu.Do(func() error {
		word, err := d.gpu.Words.Take(d.gpu.CUDA)
		if err != nil {
			return err
		}

		unblock = func() error { return d.gpu.Do(func() error { word.Set(1); return nil }) }
		return d.gpu.CUDA.StreamWaitValue(s, word.Address(), 1, cuda.WaitEqual)
	})
	return unblock, err
}
