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
	// probeLimit bounds the measurement on a busy machine, where a trip can take milliseconds.
	// Without busy processors the measurement takes about 20 ms.
	probeLimit    = 500 * time.Millisecond
	tripsPerCheck = 50 // trips between two looks at the clock
	// wordDistance is the distance in bytes between the two words. It is larger than a pair of
	// cache lines.
	wordDistance = 256
)

// Probe measures the round-trip time between two processors.
type Probe struct{ ping, pong int }

// NewProbe returns a Probe for the first two processors that this process may use, or nil if there
// is only one. Call it before the process is bound to a processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}
	return &Probe{ping: processors[0], pong: processors[1]}
}

// RoundTrip returns the median time, in nanoseconds, for a word to go from one processor to the
// other and back. It takes about probeLimit at most. If p is nil, it returns 0.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}
	// Both goroutines spin, so GOMAXPROCS must be at least 2. In a process that is bound to one
	// processor, the runtime sets it to 1.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	words := make([]uint64, 3*wordDistance/8)
	base := unsafe.Pointer(unsafe.SliceData(words))
	ping, pong := (*uint64)(base), (*uint64)(unsafe.Add(base, wordDistance))
	echoErr := make(chan error, 1)
	var batches []float64
	var stop atomic.Bool
	go func() {
		echoErr <- onProcessor(p.pong, func() error {
			echo(ping, pong, &stop)
			return nil
		})
	}()
	err := onProcessor(p.ping, func() error {
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

// echo answers each trip until stop is set.
func echo(ping, pong *uint64, stop *atomic.Bool) {
	for next := uint64(1); ; next++ {
		for !spin.Until64(ping, next, 0, 4000) {
			if stop.Load() {
				return
			}
			yield()
		}
		spin.StoreRelease64(pong, next)
	}
}

// timeTrips returns the mean time of a trip in each batch. After probeLimit it ends the last batch
// early.
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
				for !spin.Until64(pong, next, 0, 4000) {
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

// onProcessor runs f on a new OS thread that is bound to a processor. It runs f even if the thread
// cannot be bound, because the other goroutine waits for f.
func onProcessor(processor int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := sys.SetAffinity(processor)
		done <- errors.Join(err, f())
	}()
	return <-done
}
