package bench

import (
	"runtime"
	"testing"

	"symmem/internal/sys"
)

// TestRoundTripWithOneP runs with GOMAXPROCS 1, which the runtime sets when a process is
// bound to one processor. If there is only one processor there is no round trip.
func TestRoundTripWithOneP(t *testing.T) {
	allowed, err := sys.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProbe()
	one := min(len(allowed), runtime.GOMAXPROCS(0)) < 2
	if one != (p == nil) {
		t.Fatalf("with one processor: %v: %v", one, p)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if ns, err := p.RoundTrip(); err != nil || one != (ns == 0) {
		t.Errorf("with one processor: %v: %v ns, %v", one, ns, err)
	}
}
