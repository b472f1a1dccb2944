package driver

import (
	"context"
	"fmt"
	"strings"
)

// Values is implemented by a Communicator whose ranks can gather numbers under names, on the host
// and independently of streams, lanes and collectives.
type Values interface {
	// Named returns this rank's end of a name. Calls with the same name return the same end. Named
	// does not communicate, so ranks may call it for different names in any order. It returns
	// ErrInvalid if a name is empty, if it has more than MaxValueName bytes, or if the group
	// already has MaxValueNames names. It is safe for concurrent use.
	//
	// Ranks that wait under an ordered name launch no collectives. If another rank is in a
	// collective that the waiting ranks have not launched, it can never arrive, and the wait fails
	// at once with a DeadlockError. ordered must be the same on all ranks. Only the first call for
	// a name uses it.
	Named(name string, ordered bool) (Named, error)
	// Collectives returns the number of collectives that this rank has launched, including replays.
	Collectives() uint64
}

// Named is a rank's end of a name. Different names are independent of each other.
type Named interface {
	// Gather sends this rank's words to all ranks, and stores the words of every rank in the slice
	// all, by group rank. The n-th Gather under the name on one rank matches the n-th Gather on
	// every other rank. The context, or the device's timeout if the context has no deadline, limits
	// the wait. A long wait warns about late ranks. Errors are those of Exchange on LaneControl.
	// Every error, including the end of the context, fails the communicator. There must be only one
	// call at a time.
	Gather(ctx context.Context, mine Words, all []Words) error
}

// Words is one rank's contribution to a Gather. It fits into a cache line.
type Words [6]uint64

// Limits for names.
const (
	MaxValueName  = 128
	MaxValueNames = 256
)

// ValueText formats a name for error texts. Names with a leading space are internal.
func ValueText(name string) string {
	if internal, ok := strings.CutPrefix(name, " "); ok {
		return internal
	}
	return fmt.Sprintf("value %q", name)
}

// CheckValueName returns an error for an invalid name, or if the group has too many names already.
func CheckValueName(name string, names int) error {
	switch {
	case name == "" || len(name) > MaxValueName:
		return fmt.Errorf("name of %d bytes: the length is from 1 to %d: %w",
			len(name), MaxValueName, ErrInvalid)
	case names >= MaxValueNames:
		return fmt.Errorf("name %q: the group already has the maximum of %d names: %w", name,
			MaxValueNames, ErrInvalid)
	}
	return nil
}
