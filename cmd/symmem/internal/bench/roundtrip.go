package bench

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/bench/report"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

const (
	tripsPerBatch = 4000
	tripBatches   = 31
	tripsPerCheck = 50 // trips between two checks of the clock
	// probeLimit is the maximum time of a measurement. On an idle machine, it takes about 20 ms.
	probeLimit   = 500 * time.Millisecond
	wordDistance = 256  // bytes between the two words; more than a pair of cache lines
	maxSpins     = 4000 // reads of a word before a goroutine yields its processor
)

// Probe measures the round-trip time between two processors.
type Probe struct{ ping, pong int } // numbers of the processors

// NewProbe returns a Probe for the first two processors that this process may use, or nil if it may
// use only one. Call it before the process is bound to a processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}
	return &Probe{ping: processors[0], pong: processors[1]}
}

// RoundTrip returns the median time, in nanoseconds, in which one processor writes a word, the
// other reads it and answers, and the first reads the answer. If p is nil, RoundTrip returns 0.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}
	// Both goroutines spin, so GOMAXPROCS must be at least 2.
	oldProcs := runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	defer runtime.GOMAXPROCS(oldProcs)
	const wordBytes = 8
	words := make([]uint64, 3*wordDistance/wordBytes)
	base := unsafe.Pointer(unsafe.SliceData(words))
	ping, pong := (*uint64)(base), (*uint64)(unsafe.Add(base, wordDistance))
	echoErr := make(chan error, 1)
	var batches []float64
	var stop atomic.Bool
	go func() {
		echoErr <- runOnProcessor(p.pong, func() error {
			echo(ping, pong, &stop)
			return nil
		})
	}()
	err := runOnProcessor(p.ping, func() error {
		defer stop.Store(true)
		batches = timeTrips(ping, pong)
		return nil
	})
	err = errors.Join(err, <-echoErr)
	runtime.KeepAlive(words)
	if err != nil {
		return 0, fmt.Errorf("measuring the round trip: %w", err)
	}
	return report.Summarize(batches).Median, nil
}

// echo waits for the numbers 1, 2, 3 and so on in ping, and writes each to pong. It returns when
// stop is set.
func echo(ping, pong *uint64, stop *atomic.Bool) {
	for next := uint64(1); ; next++ {
		for !spin.Until64(ping, next, 0, maxSpins) {
			if stop.Load() {
				return
			}
			yield()
		}
		spin.StoreRelease64(pong, next)
	}
}

// timeTrips writes the numbers that echo expects, and waits for each answer. It returns the mean
// time of a trip in each batch, in nanoseconds. It stops after probeLimit.
func timeTrips(ping, pong *uint64) []float64 {
	var batches []float64
	next := uint64(0)
	deadline := time.Now().Add(probeLimit)
	for begin := time.Now(); len(batches) < tripBatches && begin.Before(deadline); begin = time.Now() {
		trips, now := 0, begin
		for trips < tripsPerBatch && now.Before(deadline) {
			for range tripsPerCheck {
				next++
				spin.StoreRelease64(ping, next)
				for !spin.Until64(pong, next, 0, maxSpins) {
					yield()
				}
			}
			trips += tripsPerCheck
			now = time.Now()
		}
		batches = append(batches, float64(now.Sub(begin).Nanoseconds())/float64(trips))
	}
	return batches
}

func yield() {
	sys.Yield()
	runtime.Gosched()
}

// runOnProcessor runs f on a new thread that is bound to a processor. It runs f even if binding
// fails, because the goroutine on the other processor waits for f.
func runOnProcessor(processor int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		err := sys.SetAffinity(processor)
		done <- errors.Join(err, f())
	}()
	return <-done
}
