package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds makes rt call beforeEnd before each Segment.Unmap and Window.Deregister of pools and
// groups that rt creates afterwards. If beforeEnd fails, Unmap and Deregister
// still do their work.
func HoldEnds(rt *Runtime, beforeEnd func() error) {
	hookCommunicator := func(c driver.Communicator) driver.Communicator {
		return hookedCommunicator{Communicator: c, beforeEnd: beforeEnd}
	}
	rt.device = hookedDevice{
		connectHook: connectHook{rt.device, hookCommunicator},
		beforeEnd:   beforeEnd,
	}
}

type hookedDevice struct {
	connectHook
	beforeEnd func() error
}

func (d hookedDevice) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	if err != nil {
		return nil, err
	}

	return hookedArena{Arena: a, beforeEnd: d.beforeEnd}, nil
}

// AdoptStream is needed to implement driver.Adopter.
func (hookedDevice) AdoptStream(uintptr) (driver.AdoptedStream, error) {
	return nil, ErrUnsupported
}

func (d hookedDevice) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator{beforeEnd: d.beforeEnd}, nil
}

// hookedArena is the address range of a pool.
type hookedArena struct {
	driver.Arena
	beforeEnd func() error
}

func (a hookedArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	if err != nil {
		return nil, err
	}

	return hookedSegment{Segment: s, beforeEnd: a.beforeEnd}, nil
}

type hookedSegment struct {
	driver.Segment
	beforeEnd func() error
}

func (s hookedSegment) Unmap() error {
	hookErr := s.beforeEnd()
	unmapErr := s.Segment.Unmap()
	return errors.Join(hookErr, unmapErr)
}

type hookedCommunicator struct {
	driver.Communicator
	beforeEnd func() error
}

func (c hookedCommunicator) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	if hooked, ok := memory.(hookedSegment); ok {
		memory = hooked.Segment // the backend accepts only its own type of segment
	}

	w, err := c.Communicator.Register(ctx, key, memory)
	if err != nil {
		return nil, err
	}

	return hookedWindow{Window: w, beforeEnd: c.beforeEnd}, nil
}

// hookedWindow is the registration of a segment with a group.
type hookedWindow struct {
	driver.Window
	beforeEnd func() error
}

func (w hookedWindow) Deregister() error {
	hookErr := w.beforeEnd()
	deregisterErr := w.Window.Deregister()
	return errors.Join(hookErr, deregisterErr)
}

// loneCommunicator simulates a communicator of another library, with a single rank.
type loneCommunicator struct{ beforeEnd func() error }

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return hookedWindow{Window: loneWindow{}, beforeEnd: c.beforeEnd}, nil
}

// loneWindow implements only Deregister.
type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
