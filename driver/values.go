package driver

import (
	"context"
	"fmt"
	"strings"
)

// Values is implemented by a Communicator whose ranks can gather named numbers on the host.
type Values interface {
	// Named returns this rank's endpoint for a name, always the same one, without communicating. It
	// returns ErrInvalid if the name is empty or too long, or if the group has too many names.
	//
	// If ordered is set on all ranks, Gather waits in order with the group's collectives: it fails
	// with a DeadlockError if another rank waits in a collective that the waiting ranks have not
	// launched. Only the first call for a name uses ordered.
	Named(name string, ordered bool) (Named, error)
	// Collectives counts this rank's launches of collectives, including replays.
	Collectives() uint64
}

// Named is a rank's endpoint for a name.
type Named interface {
	// Gather sends this rank's words to all ranks, and stores the words of every rank in all, by
	// group rank. The n-th Gather of a name matches the n-th on other ranks. There must be only one
	// call at a time.
	//
	// The wait ends at the context's deadline or after the device's timeout. Gather returns the
	// errors of Exchange on LaneControl, and each makes the communicator fail.
	Gather(ctx context.Context, own Words, all []Words) error
}

// Words is one rank's contribution to a Gather. It fits into a cache line.
type Words [6]uint64

// Limits for names.
const (
	MaxValueName  = 128
	MaxValueNames = 256
)

// ValueText formats a name for error texts. A leading space marks an internal name.
func ValueText(name string) string {
	if internal, ok := strings.CutPrefix(name, " "); ok {
		return internal
	}

	return fmt.Sprintf("value %q", name)
}

// CheckValueName returns an error if the name is invalid or the group has too many names.
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
