package bench

import (
	"errors"
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
	p, err := NewProbe()
	if one := min(len(allowed), runtime.GOMAXPROCS(0)) < 2; one != errors.Is(err, ErrOneCore) {
		t.Fatalf("with one processor: %v: %v", one, err)
	} else if one {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if _, err := p.RoundTrip(); err != nil {
		t.Error(err)
	}
}
