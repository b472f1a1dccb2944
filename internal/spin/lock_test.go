package spin

import (
	"runtime"
	"sync"
	"testing"
)

// turns is the number of times that each goroutine acquires the lock in the tests below. It is
// large enough for many changes of the bias (see biasTurns).
const turns = 60_000

// biasTurns is more than the number of acquisitions by one goroutine that create a bias: the
// goroutine can then acquire the lock faster, until another goroutine withdraws the bias.
const biasTurns = 5000

// TestMutualExclusion lets several goroutines count while they hold the lock. Two must never hold
// it at the same time, and no increment may get lost.
func TestMutualExclusion(t *testing.T) {
	const goroutineCount = 4
	for _, c := range []struct {
		name  string
		burst int // number of turns between yields
	}{
		{"alternating goroutines", 1},
		{"short bursts", 300},
		{"bursts that repeatedly create and withdraw a bias", biasTurns},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lock Lock
			var holders, count int // guarded by lock
			var all sync.WaitGroup
			for range goroutineCount {
				all.Go(func() {
					for turn := range turns {
						lock.Lock()
						holders++
						if holders != 1 {
							t.Errorf("%d goroutines hold the lock, want 1", holders)
						}

						count++
						holders--
						lock.Unlock()
						if turn%c.burst == 0 {
							runtime.Gosched()
						}
					}
				})
			}

			all.Wait()
			if want := goroutineCount * turns; count != want {
				t.Errorf("count = %d, want %d", count, want)
			}
		})
	}
}

// TestMutualExclusionWithTryLock lets one goroutine, the owner, acquire the lock with Lock, which
// creates a bias. Others call TryLock meanwhile. Some of these tries may succeed, but never while
// the lock is held.
func TestMutualExclusionWithTryLock(t *testing.T) {
	const ownerTurns = 10 * turns
	var lock Lock
	var holders, count, tries int // guarded by lock
	stop := make(chan struct{})
	var owner, others sync.WaitGroup
	// enter counts the goroutine that holds the lock, and checks that there is no other.
	enter := func() {
		holders++
		if holders != 1 {
			t.Errorf("%d goroutines hold the lock, want 1", holders)
		}
	}
	for range 3 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}

				if lock.TryLock() {
					enter()
					tries++
					holders--
					lock.Unlock()
				}

				runtime.Gosched()
			}
		})
	}

	owner.Go(func() {
		for range ownerTurns {
			lock.Lock()
			enter()
			count++
			holders--
			lock.Unlock()
		}
	})
	owner.Wait()
	close(stop)
	others.Wait()
	if count != ownerTurns {
		t.Errorf("count = %d, want %d", count, ownerTurns)
	}

	t.Logf("%d tries succeeded", tries)
}

// TestHeldLockCannotBeAcquired calls TryLock while the lock is held, by the same and by another
// goroutine, and after Unlock.
func TestHeldLockCannotBeAcquired(t *testing.T) {
	for name, earlierTurns := range map[string]int{"without a bias": 0, "with a bias": biasTurns} {
		t.Run(name, func(t *testing.T) {
			var lock Lock
			for range earlierTurns {
				lock.Lock()
				lock.Unlock() //nolint:staticcheck // Repeated acquisition creates the bias.
			}

			lock.Lock()
			tryInOtherGoroutine := func() bool {
				result := make(chan bool)
				go func() { result <- lock.TryLock() }()
				return <-result
			}
			if lock.TryLock() {
				t.Error("TryLock by the holder succeeded")
			}

			for range 2 { // The second try checks that the first one left the lock held.
				if tryInOtherGoroutine() {
					t.Fatal("TryLock by another goroutine succeeded while the lock was held")
				}
			}

			lock.Unlock()
			if !lock.TryLock() {
				t.Fatal("TryLock failed after Unlock")
			}

			lock.Unlock()
			if !tryInOtherGoroutine() {
				t.Error("TryLock by another goroutine failed after Unlock")
			}
		})
	}
}

// TestLockWithCond uses the lock with a sync.Cond. A goroutine waits for isOpen, while the test
// makes itself the owner of a bias and then sets isOpen. The test would hang if the wakeup got
// lost.
func TestLockWithCond(_ *testing.T) {
	var lock Lock
	isOpenChanged := sync.NewCond(&lock)
	isOpen := false // guarded by lock
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock.Lock()
		for !isOpen {
			isOpenChanged.Wait()
		}

		lock.Unlock()
	}()
	for range biasTurns {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // Repeated acquisition creates the bias.
	}

	lock.Lock()
	isOpen = true
	lock.Unlock()
	isOpenChanged.Broadcast()
	<-done
}

func BenchmarkLockOfOneGoroutine(b *testing.B) {
	var lock Lock
	for b.Loop() {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // The benchmark measures this pair.
	}
}

func BenchmarkMutexOfOneGoroutine(b *testing.B) {
	var lock sync.Mutex
	for b.Loop() {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // The benchmark measures this pair.
	}
}
