package ranked_test

import (
	"sync"
	"testing"

	"symmem/internal/ranked"
)

// Classes of locks, in the order in which a goroutine must acquire them.
type (
	outerMu  struct{}
	innerMu  struct{}
	sharedMu struct{}
)

func (outerMu) Rank() ranked.Rank {
	return ranked.Rank{Order: 1, Name: "test.outer", CanWait: true}
}

func (innerMu) Rank() ranked.Rank { return ranked.Rank{Order: 2, Name: "test.inner"} }

func (sharedMu) Rank() ranked.Rank {
	return ranked.Rank{Order: 3, Name: "test.shared"}
}

func TestMutualExclusion(t *testing.T) {
	var mutex ranked.Mutex[outerMu]
	var spin ranked.Spin[innerMu]
	var rw ranked.RWMutex[sharedMu]
	locks := map[string]sync.Locker{"Mutex": &mutex, "Spin": &spin, "RWMutex": &rw}
	for name, l := range locks {
		t.Run(name, func(t *testing.T) {
			const goroutineCount, lockCount = 4, 20_000
			count := 0 // guarded by l
			var goroutines sync.WaitGroup
			for range goroutineCount {
				goroutines.Go(func() {
					for range lockCount {
						l.Lock()
						count++
						l.Unlock()
					}
				})
			}

			goroutines.Wait()
			if want := goroutineCount * lockCount; count != want {
				t.Errorf("count = %d, want %d", count, want)
			}
		})
	}
}

func TestTryLockOfHeldLockFails(t *testing.T) {
	var mutex ranked.Mutex[outerMu]
	var spin ranked.Spin[innerMu]
	type tryLocker interface {
		sync.Locker
		TryLock() bool
	}
	for name, l := range map[string]tryLocker{"Mutex": &mutex, "Spin": &spin} {
		t.Run(name, func(t *testing.T) {
			l.Lock()
			if l.TryLock() {
				t.Error("TryLock of a held lock = true, want false")
			}

			l.Unlock()
			if !l.TryLock() {
				t.Error("TryLock of a free lock = false, want true")
			}

			l.Unlock()
		})
	}
}

func BenchmarkMutex(b *testing.B) {
	var l ranked.Mutex[outerMu]
	for b.Loop() {
		l.Lock()
		l.Unlock() //nolint:staticcheck // The benchmark measures this pair.
	}
}

func BenchmarkSpin(b *testing.B) {
	var l ranked.Spin[innerMu]
	for b.Loop() {
		l.Lock()
		l.Unlock() //nolint:staticcheck // The benchmark measures this pair.
	}
}
