package spin

import (
	"runtime"
	"sync"
	"testing"
)

// turns is how often each goroutine takes the lock in the tests below.
const turns = 60_000

func TestALockAdmitsOneGoroutineAtATime(t *testing.T) {
	for _, c := range []struct {
		name  string
		burst int // turns between two yields
	}{
		{"that take turns", 1},
		{"in bursts shorter than a bias", 300},
		{"in bursts that make and withdraw a bias again and again", 5000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lock Lock
			var inside, count int // guarded by lock
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for turn := range turns {
						lock.Lock()
						inside++
						if inside != 1 {
							t.Errorf("%d goroutines are inside", inside)
						}
						count++
						inside--
						lock.Unlock()
						if turn%c.burst == 0 {
							runtime.Gosched()
						}
					}
				})
			}
			all.Wait()
			if count != 4*turns {
				t.Errorf("%d turns were counted of %d", count, 4*turns)
			}
		})
	}
}

func TestALockWorksAsTheLockerOfACondition(_ *testing.T) {
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
		lock.Unlock() //nolint:staticcheck // Taking it often is what makes the bias.
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
		lock.Unlock() //nolint:staticcheck // The pair is what is measured.
	}
}

func BenchmarkMutexOfOneGoroutine(b *testing.B) {
	var lock sync.Mutex
	for b.Loop() {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // The pair is what is measured.
	}
}
