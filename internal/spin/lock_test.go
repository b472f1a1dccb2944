package spin

import (
	"runtime"
	"sync"
	"testing"
)

// A goroutine that acquires a Lock many times in a row becomes its owner: it gets a bias, which
// lets it acquire the lock faster. The bias ends when another goroutine acquires the lock. The
// tests use the lock with a bias, without one, and while a bias begins and ends.

// biasTurns is more than the number of acquisitions in a row that make a goroutine the owner.
const biasTurns = 5000

// turns is the number of times that a goroutine acquires the lock in TestMutualExclusion. It
// suffices for several changes of the owner.
const turns = 60_000

// TestMutualExclusion lets several goroutines count while they hold the lock. Two must never hold
// it at the same time, and no increment may get lost.
func TestMutualExclusion(t *testing.T) {
	for name, burst := range map[string]int{ // number of turns between yields to other goroutines
		"alternating goroutines": 1,
		"short bursts":           300,
		"bursts that repeatedly create and withdraw a bias": biasTurns,
	} {
		t.Run(name, func(t *testing.T) { checkMutualExclusion(t, burst) })
	}
}

func checkMutualExclusion(t *testing.T, burst int) {
	t.Helper()
	const goroutineCount = 4
	var lock Lock
	var holders, count int // guarded by lock
	var goroutines sync.WaitGroup
	for range goroutineCount {
		goroutines.Go(func() {
			for turn := range turns {
				lock.Lock()
				holders++
				if holders != 1 {
					t.Errorf("%d goroutines hold the lock, want 1", holders)
				}

				count++
				holders--
				lock.Unlock()
				if turn%burst == 0 {
					runtime.Gosched()
				}
			}
		})
	}

	goroutines.Wait()
	if want := goroutineCount * turns; count != want {
		t.Errorf("count = %d, want %d", count, want)
	}
}

// TestMutualExclusionWithTryLock lets one goroutine, the owner, acquire the lock with Lock, which
// creates a bias. Others call TryLock meanwhile. Some of these tries may succeed, but never while
// the lock is held.
func TestMutualExclusionWithTryLock(t *testing.T) {
	const ownerTurns = 10 * turns
	const tryingCount = 3 // number of goroutines that call TryLock
	var lock Lock
	var holders, count, tries int // guarded by lock
	var owner, others sync.WaitGroup
	stop := make(chan struct{}) // closed when the owner has ended
	// hold increments a counter. It checks that no other goroutine holds the lock.
	hold := func(counter *int) {
		holders++
		if holders != 1 {
			t.Errorf("%d goroutines hold the lock, want 1", holders)
		}

		*counter++
		holders--
	}
	for range tryingCount {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}

				if lock.TryLock() {
					hold(&tries)
					lock.Unlock()
				}

				runtime.Gosched()
			}
		})
	}

	owner.Go(func() {
		for range ownerTurns {
			lock.Lock()
			hold(&count)
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

// TestHeldLockCannotBeAcquired calls TryLock while the lock is held, which must fail for the holder
// and for another goroutine. After Unlock, it must succeed for both.
func TestHeldLockCannotBeAcquired(t *testing.T) {
	for name, earlierTurns := range map[string]int{
		"without a bias": 0,
		"with a bias":    biasTurns,
	} {
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
				t.Error("TryLock by the holder = true, want false")
			}

			for range 2 { // The second try checks that the first one left the lock held.
				if tryInOtherGoroutine() {
					t.Fatal("TryLock by another goroutine while the lock is held = true, want false")
				}
			}

			lock.Unlock()
			if !lock.TryLock() {
				t.Fatal("TryLock after Unlock = false, want true")
			}

			lock.Unlock()
			if !tryInOtherGoroutine() {
				t.Error("TryLock by another goroutine after Unlock = false, want true")
			}
		})
	}
}

// TestLockWithCond uses the lock with a sync.Cond. A goroutine waits until isOpen is true, while
// the test becomes the owner and then sets isOpen. The test would hang if the goroutine missed the
// change.
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
