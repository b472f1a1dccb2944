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
// In trip n, a thread on one processor (the caller) stores n in *ping. When a thread on the other
// processor (the answerer) has read n, it stores n in *pong, where the caller reads it.
type Probe struct {
	caller, answerer int // processor numbers
}

const (
	tripBatches       = 31
	tripsPerBatch     = 4000
	tripsPerClockRead = 50
	probeLimit        = 500 * time.Millisecond // an idle machine needs about 20 ms for all batches
	wordDistance      = 256                    // bytes between ping and pong; prevents false sharing
	maxPolls          = 4000                   // polls of a word before a thread yields its processor
)

// NewProbe returns a Probe for the first two processors in the affinity mask of this process. If it
// cannot use two processors, it returns nil. Call it before narrowing the mask.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}

	return &Probe{caller: processors[0], answerer: processors[1]}
}

// RoundTrip returns the median time of a trip in nanoseconds, or 0 on a nil Probe.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}

	oldProcs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, oldProcs)) // 1 is possible in a bound process
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

// runOnProcessor runs f on a thread bound to a processor. It runs f even if binding fails, because
// the other thread waits for f.
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
			makeTrips(ping, pong, lastTrip+1)
			lastTrip += tripsPerClockRead
			trips += tripsPerClockRead
			now = time.Now()
		}

		batchNS := float64(now.Sub(begin).Nanoseconds())
		batches = append(batches, batchNS/float64(trips))
	}

	return batches
}

// makeTrips makes tripsPerClockRead trips, with numbers from firstTrip on.
func makeTrips(ping, pong *uint64, firstTrip uint64) {
	for i := range uint64(tripsPerClockRead) {
		number := firstTrip + i
		spin.StoreRelease64(ping, number)
		for !pollWord(pong, number) {
			yield()
		}
	}
}

// pollWord polls *word up to maxPolls times, and reports whether it became want.
func pollWord(word *uint64, want uint64) bool {
	const pollsWithoutPause = 0
	return spin.Until64(word, want, pollsWithoutPause, maxPolls)
}

// yield lets other threads and goroutines run.
func yield() {
	sys.Yield()
	runtime.Gosched()
}
