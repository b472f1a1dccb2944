package driver

import (
	"context"
	"fmt"
	"strings"
)

// Values is implemented by a Communicator whose ranks can gather named numbers on the host,
// independently of streams, lanes and collectives.
type Values interface {
	// Named returns this rank's endpoint for a name, through which the rank exchanges numbers.
	// Calls with the same name return the same endpoint. Named does not communicate, so each rank
	// may call it for different names in any order. It returns ErrInvalid if the name is empty or
	// longer than MaxValueName bytes, or if the group already has MaxValueNames names. It is safe
	// for concurrent use.
	//
	// If ordered is set, a rank that waits in Gather promises not to launch collectives in the
	// meantime. A rank that is in a collective that the waiting ranks have not launched can
	// therefore never reach the Gather, so the wait fails immediately with a DeadlockError. ordered
	// must be the same on all ranks, and only the first call for a name uses it.
	Named(name string, ordered bool) (Named, error)
	// Collectives returns the number of collectives that this rank has launched, including replays.
	Collectives() uint64
}

// Named is a rank's endpoint for a name. Different names are independent of each other.
type Named interface {
	// Gather sends this rank's words to all ranks, and stores the words of every rank in all,
	// indexed by group rank. The n-th Gather under a name on one rank matches the n-th Gather under
	// this name on every other rank. There must be only one call at a time.
	//
	// The wait is bounded by the context or, if the context has no deadline, by the device's
	// timeout. A long wait warns about late ranks. Errors are those of Exchange on LaneControl.
	// Every error, including the end of the context, fails the communicator.
	Gather(ctx context.Context, own Words, all []Words) error
}

// Words is one rank's contribution to a Gather. It fits into a cache line.
type Words [6]uint64

// Limits for names.
const (
	MaxValueName  = 128
	MaxValueNames = 256
)

// ValueText formats a name for error texts. A leading space marks a name for internal use.
func ValueText(name string) string {
	if internal, ok := strings.CutPrefix(name, " "); ok {
		return internal
	}
	return fmt.Sprintf("value %q", name)
}

// CheckValueName returns an error if the name is invalid, or if the number of names that the group
// already has is at the limit.
func CheckValueName(name string, names int) error {
	switch {
	case name == "" || len(name) > MaxValueName:
		return fmt.Errorf("name of %d bytes: the length must be from 1 to %d: %w",
			len(name), MaxValueName, ErrInvalid)
	case names >= MaxValueNames:
		return fmt.Errorf("name %q: the group already has the maximum of %d names: %w", name,
			MaxValueNames, ErrInvalid)
	}
	return nil
}
