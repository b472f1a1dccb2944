package bench

import (
	"runtime"
	"testing"
	"time"

	"symmem/internal/spin"
	"symmem/internal/sys"
)

// TestRoundTripWithOneP checks that RoundTrip also measures with a GOMAXPROCS of 1, which the
// runtime chooses for a process that is bound to one processor. On a machine with one processor,
// NewProbe must return nil.
func TestRoundTripWithOneP(t *testing.T) {
	allowed, err := sys.Affinity()
	if err != nil {
		t.Fatal(err)
	}

	p := NewProbe()
	single := min(len(allowed), runtime.GOMAXPROCS(0)) < 2
	if single != (p == nil) {
		t.Fatalf("NewProbe() = %v; want a nil Probe: %v", p, single)
	}

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if ns, err := p.RoundTrip(); err != nil || single != (ns == 0) {
		t.Errorf("RoundTrip() = %v, %v; want a time of 0: %v", ns, err, single)
	}
}

// TestTripsEndOnBusyMachine lets each trip take a millisecond, as on a machine whose processors are
// busy. All 124,000 trips would then take two minutes.
func TestTripsEndOnBusyMachine(t *testing.T) {
	words := make([]uint64, 2*wordDistance/8)
	ping, pong := &words[0], &words[wordDistance/8]
	done := make(chan struct{})
	defer close(done)
	go func() {
		for next := uint64(1); ; {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}

			if spin.Until64(ping, next, 0, 1) {
				spin.StoreRelease64(pong, next)
				next++
			}
		}
	}()
	begin := time.Now()
	batches := timeTrips(ping, pong)
	if len(batches) != 1 || batches[0] < 1e6 {
		t.Errorf("times of trips = %v ns, want one of a millisecond or more", batches)
	}

	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the trips took %v, want about %v", took, probeLimit)
	}
}
