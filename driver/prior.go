package driver

import "fmt"

// PriorError says that a collective or a message was not run, because work before it on its stream
// had failed. It fails the group: the other ranks would get data that was never computed.
type PriorError struct {
	// Doing is the call that was not run, such as "AllReduce 2 of group world/1.0".
	Doing string
	// Rank is the world rank whose stream had failed.
	Rank int
	// Cause is the first failure of that stream.
	Cause error
}

func (e *PriorError) Error() string {
	return fmt.Sprintf("%s was not run on rank %d of the world: work before it on its stream "+
		"failed: %v", e.Doing, e.Rank, e.Cause)
}

// Unwrap returns the first failure.
func (e *PriorError) Unwrap() error { return e.Cause }
