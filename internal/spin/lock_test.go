package spin

import (
	"runtime"
	"sync"
	"testing"
)

// turns is the number of times that each goroutine acquires the lock in the tests below.
const turns = 60_000

// biasTurns is more than the number of acquisitions by one goroutine that create a bias: the
// goroutine can then acquire the lock faster, until another goroutine withdraws the bias.
const biasTurns = 5000

func TestMutualExclusion(t *testing.T) {
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
			for range 4 {
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
			if count != 4*turns {
				t.Errorf("count = %d, want %d", count, 4*turns)
			}
		})
	}
}

// TestMutualExclusionWithTryLock lets one goroutine acquire the lock with Lock, which creates a
// bias, while others try to acquire it.
func TestMutualExclusionWithTryLock(t *testing.T) {
	var lock Lock
	var holders, count, tries int // guarded by lock
	stop := make(chan struct{})
	var owner, others sync.WaitGroup
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
		for range 10 * turns {
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
	if count != 10*turns {
		t.Errorf("count = %d, want %d", count, 10*turns)
	}
	t.Logf("%d tries succeeded", tries)
}

func TestHeldLockCannotBeAcquired(t *testing.T) {
	for _, c := range []struct {
		name  string
		turns int
	}{{"without a bias", 0}, {"with a bias", biasTurns}} {
		t.Run(c.name, func(t *testing.T) {
			var lock Lock
			for range c.turns {
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

// TestLockWithCond waits for a condition variable with the lock, and would hang if a wakeup was
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
