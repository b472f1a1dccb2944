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

// Each concurrent caller of Synchronize may use the results, so each gets the error.
func TestConcurrentSynchronizeCallsReturnFailure(t *testing.T) {
	pair := newRankPair(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := pair.devices[0].NewStream()
		failIfErr(t, err)
		begin := make(chan struct{})
		errs := make(chan error)
		failIfErr(t, s.Host(func() {
			<-begin
			panic("on purpose")
		}))
		const callers = 3
		for range callers {
			go func() { errs <- s.Synchronize(t.Context()) }()
		}

		// Let the fake time of synctest pass, because callers sleep while the stream is locked.
		<-time.After(time.Second)
		synctest.Wait()
		close(begin)
		for range callers {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "on purpose") {
				t.Errorf("Synchronize = %v, want the panic %q", err, "on purpose")
			}
		}

		failIfErr(t, s.Synchronize(t.Context())) // the failure has already been reported
		failIfErr(t, s.Close())
	})
}

func TestQueuedWorkKeepsGoSlicesReachable(t *testing.T) {
	const bytes = 64 << 10 // arbitrary
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
			begin := make(chan struct{})
			other := make([]byte, bytes)
			failIfErr(t, s.Host(func() { <-begin }))
			queueWithNewSlice := func() weak.Pointer[byte] {
				slice := make([]byte, bytes)
				sliceAddress := uintptr(unsafe.Pointer(&slice[0]))
				otherAddress := uintptr(unsafe.Pointer(&other[0]))
				failIfErr(t, queue(s, sliceAddress, otherAddress))
				return weak.Make(&slice[0])
			}
			sliceRef := queueWithNewSlice() // only the queued work refers to the slice
			runtime.GC()
			runtime.GC() // the first cycle may have begun earlier
			if sliceRef.Value() == nil {
				t.Error("the slice was collected before the work had run")
				return // without running the work, which would write to reused memory
			}

			close(begin)
			failIfErr(t, s.Close())
			runtime.KeepAlive(other)
		})
	}
}

// LaunchInline leaves work to Synchronize. BeginCapture must start that work, because Synchronize
// fails during a capture.
func TestCaptureStartsDeferredWork(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	captureBegun := make(chan struct{})
	const capturingRank, peer = 0, 1
	pair.mustRunOnBoth(func(rank int) error {
		newStream, err := pair.devices[rank].NewStream()
		if err != nil {
			return err
		}

		s := newStream.(*stream)
		barrier, err := driver.Prepare(pair.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}

		if rank == peer {
			<-captureBegun
			launchErr := pair.groups[peer].Launch(s, barrier)
			syncErr := s.Synchronize(t.Context())
			closeErr := s.Close()
			return errors.Join(launchErr, syncErr, closeErr)
		}

		launcher := pair.groups[capturingRank].(driver.InlineLauncher)
		if err := launcher.LaunchInline(s, barrier); err != nil {
			return err
		}

		return captureDuringDeferredWork(t, s, captureBegun)
	})
}

// captureDuringDeferredWork closes captureBegun, and ends the capture when the work has run.
func captureDuringDeferredWork(t *testing.T, s *stream, captureBegun chan struct{}) error {
	t.Helper()
	period := s.busyPeriod
	if period == nil || !s.deferred {
		return errors.New("LaunchInline did not leave its work to Synchronize")
	}

	if err := s.BeginCapture(); err != nil {
		return err
	}

	close(captureBegun)
	if err := s.Synchronize(t.Context()); !errors.Is(err, driver.ErrCapturing) {
		return fmt.Errorf("Synchronize() = %w; want ErrCapturing", err)
	}

	select {
	case <-period.ended: // the work has run
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

func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	const deviceTimeout = processTimeout
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: deviceTimeout,
	})
	failIfErr(t, err)
	defer func() { failIfErr(t, d.Close()) }()
	device := d.(*Device)
	limit := driver.NewLimit(time.Second) // replaced by the timeouts below
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

// Synchronize clears the failure of an open stream, but not of a closed one.
func TestClosedStreamKeepsFailure(t *testing.T) {
	pair := newRankPair(t)
	s, err := pair.devices[0].NewStream()
	failIfErr(t, err)
	s.Fail(driver.ErrAborted)
	failIfErr(t, s.Close()) // does not repeat the failure, which the caller of Fail knows
	for range 2 {
		if err := s.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			t.Errorf("Synchronize() = %v after Close; want ErrAborted", err)
		}
	}
}
