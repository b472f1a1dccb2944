package driver

import (
	"context"
	"fmt"
	"strings"
)

// Values is what a Communicator may also do: its ranks gather numbers under names, on the host,
// apart from streams, lanes and collectives.
type Values interface {
	// Named returns this rank's end of a name. It asks nobody: ranks may come to names in any order.
	// A name has 1 to MaxValueName bytes; others, and more than MaxValueNames names in a group, are
	// ErrInvalid. It is safe for use by several goroutines; the same name gives the same end.
	//
	// Ranks that wait under an ordered name launch no collective meanwhile, so one that is in a
	// collective which they have not launched never comes: that is a DeadlockError at once. It is the
	// same on all ranks, and the first call for a name decides.
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

// Words are what a rank gives in one Gather: what fits into one line of a cache.
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

// CheckValueName refuses a name that no group can have, which has so many already.
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
