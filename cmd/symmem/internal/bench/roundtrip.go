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

// Probe measures the round-trip time of a cache line between two processors. Benchmark reports are
// comparable only if these times are similar.
//
// In trip n, the caller, a thread on the first processor, stores n in the word ping. The answerer,
// a thread on the second processor, polls ping until it is n, and then stores n in the word pong.
// The caller polls pong until it is n.
type Probe struct {
	caller, answerer int // processor numbers
}

const (
	tripBatches   = 31
	tripsPerBatch = 4000
	tripsPerCheck = 50                     // between reads of the clock, which take time too
	probeLimit    = 500 * time.Millisecond // an idle machine needs about 20 ms for all batches
	wordDistance  = 256                    // bytes between ping and pong; prevents false sharing
	maxPolls      = 4000                   // polls of a word before a thread yields its processor
)

// NewProbe returns a Probe for the first two processors in the affinity mask of this process, or
// nil without two usable processors. Call it before the process is bound to a processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}

	return &Probe{caller: processors[0], answerer: processors[1]}
}

// RoundTrip returns the median time of a trip in nanoseconds, or 0 if p is nil.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}

	// GOMAXPROCS may have become 1 since NewProbe.
	oldProcs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, oldProcs))
	defer runtime.GOMAXPROCS(oldProcs)
	const wordBytes = 8
	words := make([]uint64, 3*wordDistance/wordBytes) // ping, pong and padding
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

// runOnProcessor runs f on a thread bound to a processor. If binding fails, it runs f nevertheless,
// because the other thread waits for it, and returns an error.
func runOnProcessor(processor int, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the bound thread exits with the goroutine
		err := sys.SetAffinity(processor)
		f()
		done <- err
	}()
	return <-done
}

// answerTrips answers trips until stop is set.
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

// timeTrips returns the mean time of a trip in each batch, in nanoseconds. It stops after
// probeLimit, so the last batch can be shorter.
func timeTrips(ping, pong *uint64) []float64 {
	var batches []float64
	lastTrip := uint64(0)
	deadline := time.Now().Add(probeLimit)
	for len(batches) < tripBatches {
		begin := time.Now()
		if !begin.Before(deadline) {
			break
		}

		trips := 0
		now := begin
		for trips < tripsPerBatch && now.Before(deadline) {
			makeTrips(ping, pong, lastTrip)
			lastTrip += tripsPerCheck
			trips += tripsPerCheck
			now = time.Now()
		}

		batchNS := float64(now.Sub(begin).Nanoseconds())
		batches = append(batches, batchNS/float64(trips)) // trips > 0, because begin < deadline
	}

	return batches
}

// makeTrips makes the tripsPerCheck trips that follow lastTrip.
func makeTrips(ping, pong *uint64, lastTrip uint64) {
	for i := range uint64(tripsPerCheck) {
		number := lastTrip + 1 + i
		spin.StoreRelease64(ping, number)
		for !pollWord(pong, number) {
			yield()
		}
	}
}

// pollWord polls *word up to maxPolls times, and reports whether it became want.
func pollWord(word *uint64, want uint64) bool {
	const tightPolls = 0 // polls without a PAUSE instruction
	return spin.Until64(word, want, tightPolls, maxPolls)
}

// yield lets other threads and goroutines run.
func yield() {
	sys.Yield()
	runtime.Gosched()
}
