package host

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"
)

// TestConcurrentSynchronizeCallsReturnFailure synchronizes a failed stream from several goroutines.
// Each of them must get the failure, since each may use the results.
func TestConcurrentSynchronizeCallsReturnFailure(t *testing.T) {
	d := newDuo(t)
	synctest.Test(t, func(t *testing.T) {
		made, err := d.devices[0].NewStream()
		check(t, err)
		begin, errs := make(chan struct{}), make(chan error)
		check(t, made.Host(func() {
			<-begin
			panic("on purpose")
		}))
		const waiting = 3
		for range waiting {
			go func() { errs <- made.Synchronize(t.Context()) }()
		}
		<-time.After(time.Second) // waiting for a contended lock may sleep, too
		synctest.Wait()
		close(begin)
		for range waiting {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "on purpose") {
				t.Errorf("Synchronize = %v, want the panic", err)
			}
		}
		check(t, made.Synchronize(t.Context()))
		check(t, made.Close())
	})
}

// TestQueuedWorkKeepsGoSlicesReachable checks that queued work prevents the collection of its
// slice. The stream is closed right after, because later work would also keep the slice reachable.
func TestQueuedWorkKeepsGoSlicesReachable(t *testing.T) {
	const bytes = 1 << 16
	for name, queue := range map[string]func(s *stream, slice, other uintptr) error{
		"copy from": func(s *stream, slice, other uintptr) error {
			return s.Copy(other, slice, bytes)
		},
		"copy to": func(s *stream, slice, other uintptr) error {
			return s.Copy(slice, other, bytes)
		},
		"fill": func(s *stream, slice, _ uintptr) error { return s.Fill(slice, 1, bytes) },
	} {
		t.Run(name, func(t *testing.T) {
			s, begin := &stream{device: newDuo(t).devices[0]}, make(chan struct{})
			other := make([]byte, bytes)
			check(t, s.Host(func() { <-begin }))
			sliceRef := func() weak.Pointer[byte] {
				slice := make([]byte, bytes)
				check(t, queue(s, uintptr(unsafe.Pointer(&slice[0])), uintptr(unsafe.Pointer(&other[0]))))
				return weak.Make(&slice[0])
			}()
			runtime.GC()
			runtime.GC()
			if sliceRef.Value() == nil {
				t.Error("the slice was collected before the work had run")
				return // the work would write to memory that has been reused
			}
			close(begin)
			check(t, s.Close())
			runtime.KeepAlive(other)
		})
	}
}
