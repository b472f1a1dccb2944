//go:build invariants

package ranked_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"symmem/internal/ranked"
)

// severalMu is a class of locks of which a goroutine can hold several.
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

// TestLocksAreAcquiredInOrder acquires locks in orders that are allowed or must panic. The order of
// each class is in its method Rank: outerMu has 1, innerMu 2, sharedMu 3 and severalMu 4.
func TestLocksAreAcquiredInOrder(t *testing.T) {
	var outer ranked.Mutex[outerMu]
	var inner ranked.Spin[innerMu]
	var shared ranked.RWMutex[sharedMu]
	var several [2]ranked.Mutex[severalMu]
	// lock returns a function that acquires locks in the given order, and releases all.
	lock := func(locks ...sync.Locker) func() {
		return func() {
			for _, l := range locks {
				l.Lock()
				defer l.Unlock()
			}
		}
	}
	for _, c := range []struct {
		name string
		lock func()
		want string // part of the panic's text, or "" if there must be no panic
	}{
		{"in the order of ranks", lock(&outer, &inner, &shared), ""},
		{"several locks of a class with AllowsSeveral", lock(&several[0], &several[1]), ""},
		{
			"the outer lock last", lock(&inner, &outer),
			"test.outer (order 1) is acquired while test.inner",
		},
		{"the same lock twice", lock(&inner, &inner), "test.inner is acquired twice"},
		{
			"the same lock of a class with AllowsSeveral twice", lock(&several[1], &several[1]),
			"test.several is acquired twice",
		},
		{
			"for reading, out of order", lock(&several[0], readLocker{&shared}),
			"test.shared (order 3) is acquired while test.several",
		},
		{"two locks of a class without AllowsSeveral", func() {
			var other ranked.Spin[innerMu]
			lock(&inner, &other)()
		}, "test.inner (order 2) is acquired while test.inner"},
		{"the first again after others", lock(&outer, &inner, &outer), "test.outer is acquired twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recoverPanic(c.lock)
			if c.want == "" && got != "" {
				t.Errorf("got panic %q, want none", got)
			}

			if !strings.Contains(got, c.want) {
				t.Errorf("got panic %q, want one that contains %q", got, c.want)
			}
		})
	}
}

// TestInversionReportsBothStacks acquires two locks in the wrong order after another goroutine has
// acquired them in the right order. The panic must contain all stacks.
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
		"in the right order they were acquired at\n\tsymmem/internal/ranked_test.Test",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant a message that contains %q", text, want)
		}
	}
}

// lockFirst and lockSecond acquire a lock. They have names that a stack shows, because they are not
// inlined.
//
//go:noinline
func lockFirst(l sync.Locker) { l.Lock() }

//go:noinline
func lockSecond(l sync.Locker) { l.Lock() }

// TestTryLockCountsAsHeld acquires a lock with TryLock, out of order. This must not panic, because
// TryLock does not wait. A later Lock must then know that the goroutine holds the lock.
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

// TestUnlockByAnotherGoroutine acquires a lock and lets another goroutine release it. The first
// goroutine then holds no lock: it may acquire an outer lock, but a second release must panic.
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

// TestWaitingChecksHeldLocks checks that a goroutine may wait for other ranks while it holds outer,
// whose rank has CanWait. While it also holds inner, AssertMayWait must panic.
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

// TestCheckedLockDoesNotAllocate measures the bookkeeping of locks that check their order, which
// also runs in tests of hot paths.
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
