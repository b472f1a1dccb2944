package spin

import (
	"runtime"
	"sync"
	"testing"
)

const (
	// biasTurns is the number of acquisitions in a row that surely gives a goroutine a bias, a
	// faster path that it loses when another goroutine needs the lock.
	biasTurns = 5000
	turns     = 60_000 // acquisitions per goroutine, enough for several biases
)

func TestMutualExclusion(t *testing.T) {
	for name, turnsPerYield := range map[string]int{
		"alternating goroutines":   1,
		"short bursts":             300,
		"bursts that begin a bias": biasTurns,
	} {
		t.Run(name, func(t *testing.T) { checkMutualExclusion(t, turnsPerYield) })
	}
}

func checkMutualExclusion(t *testing.T, turnsPerYield int) {
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
				if turn%turnsPerYield == 0 {
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

// One goroutine calls Lock often enough to get a bias, while others call TryLock.
func TestMutualExclusionWithTryLock(t *testing.T) {
	const ownerTurns = 10 * turns
	const tryingGoroutines = 3
	var lock Lock
	var holders, ownerCount, successfulTries int // guarded by lock
	var owner, others sync.WaitGroup
	ownerHasEnded := make(chan struct{})
	incrementAlone := func(counter *int) {
		holders++
		if holders != 1 {
			t.Errorf("%d goroutines hold the lock, want 1", holders)
		}

		*counter++
		holders--
	}
	for range tryingGoroutines {
		others.Go(func() {
			for {
				select {
				case <-ownerHasEnded:
					return
				default:
				}

				if lock.TryLock() {
					incrementAlone(&successfulTries)
					lock.Unlock()
				}

				runtime.Gosched()
			}
		})
	}

	owner.Go(func() {
		for range ownerTurns {
			lock.Lock()
			incrementAlone(&ownerCount)
			lock.Unlock()
		}
	})
	owner.Wait()
	close(ownerHasEnded)
	others.Wait()
	if ownerCount != ownerTurns {
		t.Errorf("ownerCount = %d, want %d", ownerCount, ownerTurns)
	}

	t.Logf("%d tries succeeded", successfulTries)
}

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

			for range 2 { // The second try fails only if the first one left the lock held.
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

// The test hangs if the waiting goroutine, which has no bias, misses the change made with a bias.
func TestLockWithCond(_ *testing.T) {
	var lock Lock
	readyChanged := sync.NewCond(&lock)
	isReady := false // guarded by lock
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock.Lock()
		for !isReady {
			readyChanged.Wait()
		}

		lock.Unlock()
	}()
	for range biasTurns {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // Repeated acquisition creates the bias.
	}

	lock.Lock()
	isReady = true
	lock.Unlock()
	readyChanged.Broadcast()
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
