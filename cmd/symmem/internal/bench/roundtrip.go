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

// Probe measures how long data take from one processor to another and back. Reports contain this
// time, because results of two runs are comparable only if it was the same.
//
// A thread on the first processor, the caller, writes 1 to a word called ping. A thread on the
// second processor, the answerer, polls ping until it is 1, and then writes 1 to a word called
// pong. When the caller reads 1 from pong, the trip has ended. The next trip uses the number 2, and
// so on. The trips are timed in batches.
type Probe struct {
	caller   int // number of the caller's processor
	answerer int // number of the answerer's processor
}

const (
	tripBatches   = 31   // number of batches
	tripsPerBatch = 4000 // number of trips in a batch
	// tripsPerCheck is the number of trips between two checks of the clock. Checks after each trip
	// would take too much of the measured time.
	tripsPerCheck = 50
	// probeLimit is the maximum time of all batches. On an idle machine, they take about 20 ms.
	probeLimit   = 500 * time.Millisecond
	wordDistance = 256  // bytes between ping and pong; more than a pair of cache lines
	maxPolls     = 4000 // polls of a word before a thread yields its processor
)

// NewProbe returns a Probe for the first two processors that this process may use. If the process
// may use only one, NewProbe returns nil. Call it before the process is bound to a processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	hasTwo := err == nil && len(processors) >= 2 && runtime.GOMAXPROCS(0) >= 2
	if !hasTwo {
		return nil
	}

	return &Probe{caller: processors[0], answerer: processors[1]}
}

// RoundTrip returns the time of a trip in nanoseconds. It is the median of the batches, or 0 if p
// is nil.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}

	// Go must run both threads at the same time, even if GOMAXPROCS has become 1 since NewProbe.
	oldProcs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, oldProcs))
	defer runtime.GOMAXPROCS(oldProcs)
	const wordBytes = 8
	words := make([]uint64, 3*wordDistance/wordBytes) // room after each of the two words
	base := unsafe.Pointer(unsafe.SliceData(words))
	ping := (*uint64)(base)
	pong := (*uint64)(unsafe.Add(base, wordDistance))
	var stop atomic.Bool
	answererDone := make(chan error, 1)
	go func() {
		answererDone <- runOnProcessor(p.answerer, func() { answerTrips(ping, pong, &stop) })
	}()
	var batches []float64
	callerErr := runOnProcessor(p.caller, func() {
		defer stop.Store(true)
		batches = timeTrips(ping, pong)
	})
	answererErr := <-answererDone
	runtime.KeepAlive(words)
	if err := errors.Join(callerErr, answererErr); err != nil {
		return 0, fmt.Errorf("measuring the round trip: %w", err)
	}

	return report.Summarize(batches).Median, nil
}

// runOnProcessor runs f on a new thread that is bound to a processor. If the thread cannot be
// bound, it runs f nevertheless, because the other thread waits for it, and returns an error.
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

// answerTrips waits for the numbers 1, 2, 3 and so on in ping, and writes each to pong. It returns
// when stop is set.
func answerTrips(ping, pong *uint64, stop *atomic.Bool) {
	for number := uint64(1); ; number++ {
		for !pollWord(ping, number) {
			if stop.Load() {
				return
			}

			yield()
		}

		spin.StoreRelease64(pong, number)
	}
}

// timeTrips makes the batches of trips. It returns the mean time of a trip in each batch, in
// nanoseconds. After probeLimit, it makes no more trips, so that the last batch can be shorter.
func timeTrips(ping, pong *uint64) []float64 {
	var batches []float64
	number := uint64(0) // of the last trip
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
				number++
				spin.StoreRelease64(ping, number)
				for !pollWord(pong, number) {
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

// pollWord reads *word until it is want, at most maxPolls times. It reports whether the word was
// want.
func pollWord(word *uint64, want uint64) bool {
	const tightPolls = 0 // polls without a pause in between
	return spin.Until64(word, want, tightPolls, maxPolls)
}

// yield lets other threads, and other goroutines of this process, run.
func yield() {
	sys.Yield()
	runtime.Gosched()
}
