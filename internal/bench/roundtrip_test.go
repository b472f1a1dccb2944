package bench

import (
	"errors"
	"runtime"
	"testing"
)

// TestTheRoundTripEndsWithOneP: the runtime takes the others away when a process is bound to one
// processor.
func TestTheRoundTripEndsWithOneP(t *testing.T) {
	p, err := NewProbe()
	if errors.Is(err, ErrOneCore) {
		t.Skip("there is one processor")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if _, err := p.RoundTrip(); err != nil {
		t.Error(err)
	}
}
