package sys

import (
	"sync/atomic"
	"testing"
	"time"
)

func mapWordTwice(t *testing.T) (first, second *uint32) {
	t.Helper()
	f := newMemory(t, 4096)
	a, err := Map(f, 0, 4096)
	check(t, err)
	b, err := Map(f, 0, 4096)
	check(t, err)
	t.Cleanup(func() {
		check(t, a.Close())
		check(t, b.Close())
	})
	return (*uint32)(a.Base()), (*uint32)(b.Base())
}

func TestFutexWaitReturnsIfValueDiffers(t *testing.T) {
	word, _ := mapWordTwice(t)
	atomic.StoreUint32(word, 2)
	FutexWait(word, 1, time.Hour) // if it slept, the test would time out
}

func TestFutexWaitTimesOut(t *testing.T) {
	word, _ := mapWordTwice(t)
	FutexWait(word, 0, time.Millisecond)
	FutexWait(word, 0, 0)
}

// TestFutexWakesThroughAnotherMapping times out if FutexWake on one mapping of the word does not
// wake a thread that sleeps on another.
func TestFutexWakesThroughAnotherMapping(t *testing.T) {
	first, second := mapWordTwice(t)
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		for atomic.LoadUint32(first) == 0 {
			FutexWait(first, 0, time.Hour)
		}
	}()
	atomic.StoreUint32(second, 1)
	FutexWake(second)
	<-woken
}

func TestYieldReturns(_ *testing.T) {
	for range 100 {
		Yield()
	}
}
