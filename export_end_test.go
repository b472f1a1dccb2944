package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds makes rt call hold before it unmaps a segment of a pool, or deregisters a window, the
// registration of a segment with a group. Unmap and Deregister proceed even if hold fails. Existing
// pools and groups are not affected.
func HoldEnds(rt *Runtime, hold func() error) {
	hookCommunicator := func(c driver.Communicator) driver.Communicator {
		return hookedCommunicator{Communicator: c, hold: hold}
	}
	rt.device = hookedDevice{
		connectHook: connectHook{Device: rt.device, joined: hookCommunicator},
		hold:        hold,
	}
}

type hookedDevice struct {
	connectHook
	hold func() error
}

func (d hookedDevice) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return hookedArena{Arena: a, hold: d.hold}, err
}

// hookedArena is the address range of a pool.
type hookedArena struct {
	driver.Arena
	hold func() error
}

func (a hookedArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	return hookedSegment{Segment: s, hold: a.hold}, err
}

type hookedSegment struct {
	driver.Segment
	hold func() error
}

func (s hookedSegment) Unmap() error {
	holdErr := s.hold()
	unmapErr := s.Segment.Unmap()
	return errors.Join(holdErr, unmapErr)
}

type hookedCommunicator struct {
	driver.Communicator
	hold func() error
}

func (c hookedCommunicator) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	if hooked, ok := memory.(hookedSegment); ok {
		memory = hooked.Segment // the backend accepts only its own type of segment
	}

	w, err := c.Communicator.Register(ctx, key, memory)
	return hookedWindow{Window: w, hold: c.hold}, err
}

type hookedWindow struct {
	driver.Window
	hold func() error
}

func (w hookedWindow) Deregister() error {
	holdErr := w.hold()
	deregisterErr := w.Window.Deregister()
	return errors.Join(holdErr, deregisterErr)
}

func (hookedDevice) AdoptStream(uintptr) (driver.AdoptedStream, error) {
	return nil, ErrUnsupported
}

func (d hookedDevice) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator{hold: d.hold}, nil
}

// loneCommunicator simulates another library's communicator that has one rank.
type loneCommunicator struct{ hold func() error }

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return hookedWindow{Window: loneWindow{}, hold: c.hold}, nil
}

// loneWindow implements only Deregister.
type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
