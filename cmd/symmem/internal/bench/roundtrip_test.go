package bench

import (
	"runtime"
	"testing"

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
