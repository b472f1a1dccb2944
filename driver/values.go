package driver

import (
	"context"
	"fmt"
	"strings"
)

// Values is implemented by a Communicator whose ranks can gather numbers under names, on the host,
// independent of streams, lanes and collectives.
type Values interface {
	// Named returns this rank's end of a name. It does not communicate: ranks may come to names in any
	// order. A name has 1 to MaxValueName bytes; other names, and more than MaxValueNames names in a
	// group, are ErrInvalid. It is safe for concurrent use; the same name gives the same end.
	//
	// Ranks that wait under an ordered name launch no collectives. A rank that is inside a collective
	// which they have not launched can therefore never arrive: that is a DeadlockError at once.
	// ordered must be the same on all ranks; the first call for a name decides.
	Named(name string, ordered bool) (Named, error)
	// Collectives is how many collectives this rank has launched, those of replays included.
	Collectives() uint64
}

// Named is a rank's end of a name. Names do not wait for each other.
type Named interface {
	// Gather gives this rank's words to the others, and fills all with everybody's, by group rank,
	// once every rank has come to its n-th Gather under the name. The wait is bounded by the context,
	// or by the device's timeout where that has no deadline, and warns of ranks that are late. An
	// error, the end of the context among them, is one as Exchange has it on LaneControl, and fails
	// the communicator. One call at a time.
	Gather(ctx context.Context, mine Words, all []Words) error
}

// Words holds what one rank contributes to a Gather. It fits into a cache line.
type Words [6]uint64

// Bounds of names.
const (
	MaxValueName  = 128
	MaxValueNames = 256
)

// ValueText writes a name for people. Those with a blank in front are not users'.
func ValueText(name string) string {
	if own, ok := strings.CutPrefix(name, " "); ok {
		return own
	}
	return fmt.Sprintf("value %q", name)
}

// CheckValueName returns an error for an invalid name, or if the group has too many names already.
func CheckValueName(name string, names int) error {
	switch {
	case name == "" || len(name) > MaxValueName:
		return fmt.Errorf("a name of %d bytes, from 1 to %d: %w", len(name), MaxValueName, ErrInvalid)
	case names >= MaxValueNames:
		return fmt.Errorf("name %q is one more than the %d that a group may have: %w", name,
			MaxValueNames, ErrInvalid)
	}
	return nil
}
