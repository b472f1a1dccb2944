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
		errs := make(chan error)
		failIfErr(t, s.Host(func() {
			<-begin
			panic("on purpose")
		}))
		const callers = 3
		for range callers {
			go func() { errs <- s.Synchronize(t.Context()) }()
		}
		<-time.After(time.Second) // goroutines may sleep while they wait for the lock
		synctest.Wait()           // until all callers wait for the work
		close(begin)
		for range callers {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "on purpose") {
				t.Errorf("Synchronize = %v, want the panic", err)
			}
		}
		failIfErr(t, s.Synchronize(t.Context()))
		failIfErr(t, s.Close())
	})
}

// TestQueuedWorkKeepsGoSlicesReachable checks that queued work prevents the garbage collection of
// a Go slice that it uses. The tested work is the last in the queue, because later work might also
// keep the slice reachable.
func TestQueuedWorkKeepsGoSlicesReachable(t *testing.T) {
	const bytes = 1 << 16
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
			sliceRef := func() weak.Pointer[byte] {
				slice := make([]byte, bytes)
				failIfErr(t, queue(s, uintptr(unsafe.Pointer(&slice[0])),
					uintptr(unsafe.Pointer(&other[0]))))
				return weak.Make(&slice[0])
			}()
			runtime.GC()
			runtime.GC()
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

// TestCaptureStartsDeferredWork begins a capture between LaunchInline and the Synchronize that
// would run the launched work. The work must run anyway, because Synchronize fails.
func TestCaptureStartsDeferredWork(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	launched := make(chan struct{})
	for _, err := range d.runOnBoth(func(rank int) error {
		newStream, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}
		s := newStream.(*stream)
		p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}
		if rank == 1 {
			<-launched
			return errors.Join(d.groups[1].Launch(s, p), s.Synchronize(t.Context()), s.Close())
		}
		if err := d.groups[0].(driver.InlineLauncher).LaunchInline(s, p); err != nil {
			return err
		}
		period := s.busyPeriod // ends when the work has run
		if period == nil || !s.deferred {
			return errors.New("LaunchInline did not leave its work to Synchronize")
		}
		if err := s.BeginCapture(); err != nil {
			return err
		}
		close(launched)
		if err := s.Synchronize(t.Context()); !errors.Is(err, driver.ErrCapturing) {
			return fmt.Errorf("Synchronize() = %w; want ErrCapturing", err)
		}
		select {
		case <-period.ended:
		case <-time.After(processTimeout):
			return errors.New("the work did not run during the capture")
		}
		g, err := s.EndCapture()
		if err != nil {
			return err
		}
		return errors.Join(g.Close(), s.Close())
	}) {
		failIfErr(t, err)
	}
}

// TestLongestTimeoutOfOpenGroups changes the timeout of a group. longestTimeout must return the
// timeout of the device or the group, whichever is longer, and ignore the group once it is closed.
func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: processTimeout,
	})
	failIfErr(t, err)
	defer func() { failIfErr(t, d.Close()) }()
	device := d.(*Device)
	limit := driver.NewLimit(time.Second)
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "g", Ranks: []int{0}, Timeout: limit})
	failIfErr(t, err)
	for _, timeout := range []time.Duration{processTimeout / 2, 2 * processTimeout} {
		limit.Set(timeout)
		if got, want := device.longestTimeout(), max(timeout, processTimeout); got != want {
			t.Errorf("longestTimeout() = %v with a group of timeout %v; want %v", got, timeout, want)
		}
	}
	failIfErr(t, c.Close())
	if got := device.longestTimeout(); got != processTimeout {
		t.Errorf("longestTimeout() = %v without a group; want %v", got, processTimeout)
	}
}

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
