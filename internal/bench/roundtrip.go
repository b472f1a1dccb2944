package bench

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Trips is the round trip between two cores before and after a run, in nanoseconds.
type Trips struct {
	Before float64 `json:"before_ns"`
	After  float64 `json:"after_ns"`
	// Mode is where both lie: "smt" (two threads of a core), "near" (one cache behind both), "far",
	// "busy" (other work has the processors), "unknown" (there is one processor), or "mixed" if the
	// machine changed during the run. Runs of modes busy and mixed compare with nothing.
	Mode string `json:"mode"`
}

// NewTrips tags a run.
func NewTrips(before, after float64) *Trips {
	mode := modeOf(before)
	if mode != modeOf(after) {
		mode = "mixed"
	}
	return &Trips{Before: before, After: after, Mode: mode}
}

// modeOf classifies a round trip. The limits lie in the gaps between what machines show: threads of
// one core take 46 to 82 ns, cores behind one cache 91 to 160, others 230 to 540.
func modeOf(ns float64) string {
	switch {
	case ns <= 0:
		return "unknown"
	case ns < 82:
		return "smt"
	case ns < 200:
		return "near"
	case ns < 700:
		return "far"
	default:
		return "busy"
	}
}

const (
	tripsPerBatch = 4000
	tripBatches   = 31
	// farEnough keeps two words out of one another's pair of cache lines.
	farEnough = 256
)

// Probe measures the round trip between two processors.
type Probe struct{ ping, pong int }

// NewProbe chooses the first two processors that this process may use. It is made before the
// process is bound to one of them. It is nil where there is one processor.
func NewProbe() *Probe {
	processors, err := sys.Affinity()
	// Both sides spin, so each needs a P of its own, too.
	if err != nil || len(processors) < 2 || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}
	return &Probe{ping: processors[0], pong: processors[1]}
}

// RoundTrip returns the median time in nanoseconds in which a word goes from one processor to the
// other and back; 0 means unknown. It takes some 20 ms.
func (p *Probe) RoundTrip() (float64, error) {
	if p == nil {
		return 0, nil
	}
	// The runtime may have taken Ps away since NewProbe has looked: it has one for each processor that
	// the process may use, and a rank that is bound may use one. One that was set stays.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	words := make([]uint64, 3*farEnough/8)
	base := unsafe.Pointer(unsafe.SliceData(words))
	ping, pong := (*uint64)(base), (*uint64)(unsafe.Add(base, farEnough))
	echoed := make(chan error, 1)
	var batches []float64
	go func() {
		echoed <- onProcessor(p.pong, func() error {
			echo(ping, pong)
			return nil
		})
	}()
	err := onProcessor(p.ping, func() error {
		batches = drive(ping, pong)
		return nil
	})
	err = errors.Join(err, <-echoed)
	runtime.KeepAlive(words)
	if err != nil {
		return 0, fmt.Errorf("measuring the round trip: %w", err)
	}
	return Summarize(batches).Median, nil
}

func echo(ping, pong *uint64) {
	for i := uint64(1); i <= tripsPerBatch*tripBatches; i++ {
		await(ping, i)
		spin.StoreRelease64(pong, i)
	}
}

func drive(ping, pong *uint64) []float64 {
	var batches []float64
	next := uint64(0)
	for range tripBatches {
		begin := time.Now()
		for range tripsPerBatch {
			next++
			spin.StoreRelease64(ping, next)
			await(pong, next)
		}
		batches = append(batches, float64(time.Since(begin).Nanoseconds())/tripsPerBatch)
	}
	return batches
}

// await polls with a PAUSE between looks, for as long as the other side takes.
func await(word *uint64, want uint64) {
	for !spin.Until64(word, want, 0, 4000) {
		sys.Yield()
		runtime.Gosched()
	}
}
