package bench

import (
	"runtime"
	"testing"

	"symmem/internal/sys"
)

// TestRoundTripWithOneP sets GOMAXPROCS to 1, as the runtime does when a process is bound to one
// processor. RoundTrip must still measure. On a machine with one processor, NewProbe must return
// nil.
func TestRoundTripWithOneP(t *testing.T) {
	allowed, err := sys.Affinity()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProbe()
	single := min(len(allowed), runtime.GOMAXPROCS(0)) < 2
	if single != (p == nil) {
		t.Fatalf("NewProbe() = %v; want nil: %v", p, single)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if ns, err := p.RoundTrip(); err != nil || single != (ns == 0) {
		t.Errorf("RoundTrip() = %v, %v; want 0: %v", ns, err, single)
	}
}
