package spin

import (
	"runtime"
	"sync"
	"testing"
)

// turns is the number of times that each goroutine acquires the lock in the tests below.
const turns = 60_000

func TestMutualExclusion(t *testing.T) {
	for _, c := range []struct {
		name  string
		burst int // number of turns between yields
	}{
		{"alternating goroutines", 1},
		{"short bursts", 300},
		{"bursts that repeatedly create and withdraw a bias", 5000},
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
	}{{"without a bias", 0}, {"with a bias", 5000}} {
		t.Run(c.name, func(t *testing.T) {
			var lock Lock
			for range c.turns {
				lock.Lock()
				lock.Unlock() //nolint:staticcheck // Repeated acquisition creates the bias.
			}
			lock.Lock()
			tries := make(chan bool)
			try := func() { tries <- lock.TryLock() }
			if lock.TryLock() {
				t.Error("TryLock by the holder succeeded")
			}
			for range 2 {
				go try()
				if <-tries {
					t.Fatal("TryLock by another goroutine succeeded while the lock was held")
				}
			}
			lock.Unlock()
			if !lock.TryLock() {
				t.Fatal("TryLock failed after Unlock")
			}
			lock.Unlock()
			go try()
			if !<-tries {
				t.Error("TryLock by another goroutine failed after Unlock")
			}
		})
	}
}

func TestLockWithCond(_ *testing.T) {
	var lock Lock
	ready := sync.NewCond(&lock)
	open := false // guarded by lock
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock.Lock()
		for !open {
			ready.Wait()
		}
		lock.Unlock()
	}()
	for range 5000 {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // Repeated acquisition creates the bias.
	}
	lock.Lock()
	open = true
	lock.Unlock()
	ready.Broadcast()
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
