//go:build invariants

package ranked_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"symmem/internal/ranked"
)

// severalMu follows outerMu, innerMu and sharedMu, which have the orders 1, 2 and 3.
type severalMu struct{}

func (severalMu) Rank() ranked.Rank {
	return ranked.Rank{Order: 4, Name: "test.several", AllowsSeveral: true}
}

// recoverPanic calls f and returns the text of its panic, or "".
func recoverPanic(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

// readLocker is a sync.Locker that acquires a lock for reading.
type readLocker struct{ *ranked.RWMutex[sharedMu] }

func (r readLocker) Lock()   { r.RLock() }
func (r readLocker) Unlock() { r.RUnlock() }

func TestLocksAreAcquiredInOrder(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Spin[innerMu]
	var shared ranked.RWMutex[sharedMu]
	var several [2]ranked.Mutex[severalMu]
	var otherInner ranked.Spin[innerMu]
	type lockers []sync.Locker // in the order of acquisition
	for _, c := range []struct {
		name  string
		locks lockers
		want  string // part of the panic's text; "" if there is no panic
	}{
		{"in the order of ranks", lockers{&outer, &inner, &shared}, ""},
		{"several locks of a class with AllowsSeveral", lockers{&several[0], &several[1]}, ""},
		{
			"the outer lock last",
			lockers{&inner, &outer},
			"test.outer (order 1) is acquired while test.inner",
		},
		{"the same lock twice", lockers{&inner, &inner}, "test.inner is acquired twice"},
		{
			"the same lock of a class with AllowsSeveral twice",
			lockers{&several[1], &several[1]},
			"test.several is acquired twice",
		},
		{
			"for reading, out of order",
			lockers{&several[0], readLocker{&shared}},
			"test.shared (order 3) is acquired while test.several",
		},
		{
			"two locks of a class without AllowsSeveral",
			lockers{&inner, &otherInner},
			"test.inner (order 2) is acquired while test.inner",
		},
		{
			"the first again after others",
			lockers{&outer, &inner, &outer},
			"test.outer is acquired twice",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recoverPanic(func() {
				for _, l := range c.locks {
					l.Lock()
					defer l.Unlock()
				}
			})
			if c.want == "" && got != "" {
				t.Errorf("got panic %q, want none", got)
			}

			if !strings.Contains(got, c.want) {
				t.Errorf("got panic %q, want one that contains %q", got, c.want)
			}
		})
	}
}

// The panic shows where the two locks were acquired in the wrong order, and where locks of their
// classes were first acquired in the right order.
func TestInversionReportsBothStacks(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Mutex[innerMu]
	done := make(chan struct{})
	go func() {
		defer close(done)
		outer.Lock()
		defer outer.Unlock()
		inner.Lock()
		defer inner.Unlock()
	}()
	<-done
	text := recoverPanic(func() {
		lockFirst(&inner)
		defer inner.Unlock()
		lockSecond(&outer)
	})
	for _, want := range []string{
		"test.inner was acquired at\n\tsymmem/internal/ranked_test.lockFirst",
		"test.outer is requested at\n\tsymmem/internal/ranked_test.lockSecond",
		// An earlier test may have been the first.
		"in the right order they were acquired at\n\tsymmem/internal/ranked_test.Test",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant a message that contains %q", text, want)
		}
	}
}

// lockFirst and lockSecond have names that the test can find in stacks.
//
//go:noinline
func lockFirst(l sync.Locker) { l.Lock() }

//go:noinline
func lockSecond(l sync.Locker) { l.Lock() }

// TryLock may be called out of order, because it does not wait. Afterwards, the goroutine holds the
// lock, so Lock panics.
func TestTryLockCountsAsHeld(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Spin[innerMu]
	inner.Lock()
	if !outer.TryLock() {
		t.Fatal("TryLock of a free lock failed")
	}

	text := recoverPanic(outer.Lock)
	for _, want := range []string{
		"test.outer is acquired twice",
		"test.outer was acquired at\n\tsymmem/internal/ranked_test.TestTryLockCountsAsHeld",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got panic %q, want %q", text, want)
		}
	}

	outer.Unlock()
	inner.Unlock()
	outer.Lock()
	outer.Unlock() //nolint:staticcheck // The test checks that this does not block.
}

// After another goroutine has unlocked inner, this goroutine may acquire outer, an earlier lock.
func TestUnlockByAnotherGoroutine(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Mutex[innerMu]
	inner.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		inner.Unlock()
	}()
	<-done
	outer.Lock()
	outer.Unlock() //nolint:staticcheck // The test checks that this does not block.
	if text := recoverPanic(inner.Unlock); !strings.Contains(text, "is not held") {
		t.Errorf("got panic %q, want \"is not held\"", text)
	}
}

// A goroutine may wait for another process while it holds outer, which has CanWait, but not while
// it holds inner.
func TestWaitingChecksHeldLocks(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Mutex[innerMu]
	ranked.AssertMayWait() // Without locks, waiting is allowed.
	outer.Lock()
	defer outer.Unlock()
	ranked.AssertMayWait()
	inner.Lock()
	defer inner.Unlock()
	if text := recoverPanic(ranked.AssertMayWait); !strings.Contains(text, "with test.inner held") {
		t.Errorf("got panic %q, want \"with test.inner held\"", text)
	}
}

// Other tests check that functions with locks do not allocate. They also run with checked locks.
func TestCheckedLockDoesNotAllocate(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Spin[innerMu]
	allocations := testing.AllocsPerRun(1000, func() {
		outer.Lock()
		inner.Lock()
		inner.Unlock() //nolint:staticcheck // The test measures these pairs.
		outer.Unlock()
	})
	if allocations != 0 {
		t.Errorf("two pairs of Lock and Unlock allocate %v times, want 0", allocations)
	}
}
