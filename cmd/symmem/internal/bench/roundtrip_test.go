package bench

import (
	"runtime"
	"testing"

	"symmem/internal/sys"
)

// TestTheRoundTripEndsWithOneP: the runtime takes the others away when a process is bound to one
// processor. Where there is one from the beginning there is no round trip.
func TestTheRoundTripEndsWithOneP(t *testing.T) {
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
