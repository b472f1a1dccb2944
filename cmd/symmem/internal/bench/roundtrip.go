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
	tripsPerCheck = 50 // trips between two checks of the clock, so that checks cost little time
	// probeLimit is the maximum time of a measurement. On an idle machine, it takes about 20 ms.
	probeLimit   = 500 * time.Millisecond
	wordDistance = 256  // bytes between the two words; more than a pair of cache lines
	maxPolls     = 4000 // polls of a word before a goroutine yields its processor
)

// Probe measures the round-trip time between two processors. Reports contain this time, because
// results of two runs are comparable only if it was the same.
type Probe struct {
	caller   int // number of the processor that measures the time
	answerer int // number of the processor that answers
}

// NewProbe returns a Probe for the first two processors that this process may use. If the process
// may use only one, NewProbe returns nil. Call it before the process is bound to a processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}

	return &Probe{caller: processors[0], answerer: processors[1]}
}

// RoundTrip returns the median time of a round trip in nanoseconds. In a round trip, one processor
// writes a word, the other reads it and answers, and the first reads the answer. If p is nil,
// RoundTrip returns 0.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}

	// Both goroutines spin, so GOMAXPROCS must be at least 2.
	oldProcs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, oldProcs))
	defer runtime.GOMAXPROCS(oldProcs)
	const wordBytes = 8
	words := make([]uint64, 3*wordDistance/wordBytes) // room behind each of the two words
	base := unsafe.Pointer(unsafe.SliceData(words))
	ping := (*uint64)(base)
	pong := (*uint64)(unsafe.Add(base, wordDistance))
	var stop atomic.Bool
	echoDone := make(chan error, 1)
	go func() {
		echoDone <- runOnProcessor(p.answerer, func() { echo(ping, pong, &stop) })
	}()
	var batches []float64
	tripsErr := runOnProcessor(p.caller, func() {
		defer stop.Store(true)
		batches = timeTrips(ping, pong)
	})
	echoErr := <-echoDone
	runtime.KeepAlive(words)
	if err := errors.Join(tripsErr, echoErr); err != nil {
		return 0, fmt.Errorf("measuring the round trip: %w", err)
	}

	return report.Summarize(batches).Median, nil
}

// echo waits for the numbers 1, 2, 3 and so on in ping, and writes each to pong. It returns when
// stop is set.
func echo(ping, pong *uint64, stop *atomic.Bool) {
	for next := uint64(1); ; next++ {
		for !pollWord(ping, next) {
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
	for len(batches) < tripBatches {
		begin := time.Now()
		if !begin.Before(deadline) {
			break
		}

		trips := 0
		now := begin
		for trips < tripsPerBatch && now.Before(deadline) {
			for range tripsPerCheck {
				next++
				spin.StoreRelease64(ping, next)
				for !pollWord(pong, next) {
					yield()
				}
			}

			trips += tripsPerCheck
			now = time.Now()
		}

		batchNS := float64(now.Sub(begin).Nanoseconds())
		batches = append(batches, batchNS/float64(trips)) // trips > 0: begin is before the deadline
	}

	return batches
}

// pollWord reads *word until it is want, at most maxPolls times. It returns false if the word was
// not want at any of these times.
func pollWord(word *uint64, want uint64) bool {
	const tightPolls = 0 // polls without a pause in between
	return spin.Until64(word, want, tightPolls, maxPolls)
}

// yield lets other threads, and other goroutines of this process, run.
func yield() {
	sys.Yield()
	runtime.Gosched()
}

// runOnProcessor runs f on a new thread that is bound to a processor. It runs f even if binding
// fails, because the goroutine on the other processor waits for f.
func runOnProcessor(processor int, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		err := sys.SetAffinity(processor)
		f()
		done <- err
	}()
	return <-done
}
