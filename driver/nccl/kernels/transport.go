package kernels

import (
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Transport holds the arguments that every kernel needs to communicate with other ranks.
type Transport struct {
	Exchange   []uintptr // address of each rank's exchange memory, in group order
	Report     uintptr
	Timeout    time.Duration // of waits for peers
	CanOverlap bool          // kernels may start before earlier ones have completed
}

// PeerLocator is implemented by windows that peers have mapped.
type PeerLocator interface {
	// Locate returns the address of each rank's copy of a buffer, in group order.
	Locate(address uintptr) []uintptr
}

// Work describes a call on the direct path.
type Work interface {
	// Steps returns the kernel launches of the call in execution order.
	Steps(t *Transport) []Step
	// Remark returns a remark for users about how the call runs, or "".
	Remark() string
}

// Step describes a kernel launch.
type Step struct {
	Kernel          string
	Blocks, Threads int
	Params          cuda.Params
	CanOverlap      bool    // the kernel may start before its predecessor has completed
	Local           bool    // the kernel accesses only this rank's memory, and has no digest
	digestOffset    uintptr // in Params
}

// SetDigest replaces the digest in the arguments, unless the kernel is local.
func (s *Step) SetDigest(digest uint64) {
	if !s.Local {
		s.Params = s.Params.WithUint64(int(s.digestOffset), digest)
	}
}

// Choose chooses the kernels of a call, or returns an error with the reason why there are none. The
// caller must have set the fields of l up to Multiprocessors.
func Choose(l Launch) (Work, error) {
	if l.Route != nil {
		return chooseRoute(l)
	}

	if l.Operation.SplitsOneBuffer() {
		return ChooseRows(l, []*driver.Call{l.Call})
	}

	if err := l.Choose(); err != nil {
		return nil, err
	}

	return &l, nil
}
