package host

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestConcurrentSynchronizeCallsReturnFailure calls Synchronize from several goroutines while the
// stream's work fails. Every call must return the error, because each caller may use the results.
func TestConcurrentSynchronizeCallsReturnFailure(t *testing.T) {
	d := newRankPair(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := d.devices[0].NewStream()
		failIfErr(t, err)
		begin := make(chan struct{}) // closed to let the work fail
		errs := make(chan error)     // results of Synchronize
		work := func() {
			<-begin
			panic("on purpose")
		}
		failIfErr(t, s.Host(work))
		const callers = 3
		for range callers {
			go func() { errs <- s.Synchronize(t.Context()) }()
		}

		// Wait until all callers wait for the work. Before that, some may sleep while they wait for a
		// lock. The second is of synctest's time, so it takes no real time.
		<-time.After(time.Second)
		synctest.Wait()
		close(begin)
		for range callers {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "on purpose") {
				t.Errorf("Synchronize = %v, want the panic %q", err, "on purpose")
			}
		}

		// A later call does not return the failure again.
		failIfErr(t, s.Synchronize(t.Context()))
		failIfErr(t, s.Close())
	})
}

// TestQueuedWorkKeepsGoSlicesReachable checks that queued work prevents the garbage collection of
// a Go slice that it uses. The tested work is the last in the queue, because later work might also
// keep the slice reachable.
func TestQueuedWorkKeepsGoSlicesReachable(t *testing.T) {
	const bytes = 1 << 16
	// Each function queues work on slice. other is memory that stays reachable anyway.
	for name, queue := range map[string]func(s *stream, slice, other uintptr) error{
		"copy from the slice": func(s *stream, slice, other uintptr) error {
			return s.Copy(other, slice, bytes)
		},
		"copy to the slice": func(s *stream, slice, other uintptr) error {
			return s.Copy(slice, other, bytes)
		},
		"fill the slice": func(s *stream, slice, _ uintptr) error { return s.Fill(slice, 1, bytes) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{device: newRankPair(t).devices[0]}
			begin := make(chan struct{}) // closed to let the queued work run
			other := make([]byte, bytes)
			failIfErr(t, s.Host(func() { <-begin }))
			// In a function, so that no variable of the test keeps the slice reachable.
			sliceRef := func() weak.Pointer[byte] {
				slice := make([]byte, bytes)
				sliceAddress := uintptr(unsafe.Pointer(&slice[0]))
				otherAddress := uintptr(unsafe.Pointer(&other[0]))
				failIfErr(t, queue(s, sliceAddress, otherAddress))
				return weak.Make(&slice[0])
			}()
			runtime.GC()
			runtime.GC() // in case the first one had begun before
			if sliceRef.Value() == nil {
				t.Error("the slice was collected before the work had run")
				return // do not run the work, which would write to reused memory
			}

			close(begin)
			failIfErr(t, s.Close())
			runtime.KeepAlive(other)
		})
	}
}

// LaunchInline may defer work: the next Synchronize runs it on its goroutine. But Synchronize fails
// while the stream records a graph, from BeginCapture to EndCapture. So BeginCapture must make
// another goroutine run the deferred work.

// TestCaptureStartsDeferredWork defers a collective on rank 0, and then begins a capture. Rank 1
// takes part in the collective, which must end during the capture.
func TestCaptureStartsDeferredWork(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	hasBegun := make(chan struct{}) // closed when rank 0 has begun its capture
	for _, err := range d.runOnBoth(func(rank int) error {
		newStream, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}

		s := newStream.(*stream)
		barrier, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}

		if rank == 1 {
			<-hasBegun
			launchErr := d.groups[1].Launch(s, barrier)
			syncErr := s.Synchronize(t.Context())
			closeErr := s.Close()
			return errors.Join(launchErr, syncErr, closeErr)
		}

		if err := d.groups[0].(driver.InlineLauncher).LaunchInline(s, barrier); err != nil {
			return err
		}

		return captureDuringDeferredWork(t, s, hasBegun)
	}) {
		failIfErr(t, err)
	}
}

// captureDuringDeferredWork begins a capture on a stream with deferred work, and closes hasBegun.
// It ends the capture and closes the stream when the work has run.
func captureDuringDeferredWork(t *testing.T, s *stream, hasBegun chan struct{}) error {
	t.Helper()
	period := s.busyPeriod // ends when the work has run
	if period == nil || !s.deferred {
		return errors.New("LaunchInline did not leave its work to Synchronize")
	}

	if err := s.BeginCapture(); err != nil {
		return err
	}

	close(hasBegun)
	if err := s.Synchronize(t.Context()); !errors.Is(err, driver.ErrCapturing) {
		return fmt.Errorf("Synchronize() = %w; want ErrCapturing", err)
	}

	select {
	case <-period.ended: // rank 1 has launched the collective, and the work has run
	case <-time.After(processTimeout):
		return errors.New("the work did not run during the capture")
	}

	graph, err := s.EndCapture()
	if err != nil {
		return err
	}

	graphErr := graph.Close()
	streamErr := s.Close()
	return errors.Join(graphErr, streamErr)
}

// A device has a timeout, and each of its groups may have another. longestTimeout must return the
// longest of the device and its open groups. The test changes the timeout of a group, and then
// closes the group.
func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	const deviceTimeout = processTimeout
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: deviceTimeout,
	})
	failIfErr(t, err)
	defer func() { failIfErr(t, d.Close()) }()
	device := d.(*Device)
	limit := driver.NewLimit(time.Second) // changed below
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "g", Ranks: []int{0}, Timeout: limit})
	failIfErr(t, err)
	for _, timeout := range []time.Duration{deviceTimeout / 2, 2 * deviceTimeout} {
		limit.Set(timeout)
		if got, want := device.longestTimeout(), max(timeout, deviceTimeout); got != want {
			t.Errorf("longestTimeout() = %v with a group of timeout %v; want %v", got, timeout, want)
		}
	}

	failIfErr(t, c.Close())
	if got := device.longestTimeout(); got != deviceTimeout {
		t.Errorf("longestTimeout() = %v without a group; want %v", got, deviceTimeout)
	}
}

// TestClosedStreamKeepsFailure closes a failed stream. Each Synchronize must return the failure,
// although one on an open stream returns it only once.
func TestClosedStreamKeepsFailure(t *testing.T) {
	d := newRankPair(t)
	s, err := d.devices[0].NewStream()
	failIfErr(t, err)
	s.Fail(driver.ErrAborted)
	failIfErr(t, s.Close()) // returns nil, because the caller of Fail already has the failure
	for range 2 {
		if err := s.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			t.Errorf("Synchronize() = %v after Close; want ErrAborted", err)
		}
	}
}
