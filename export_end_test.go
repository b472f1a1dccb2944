package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds makes rt call hold before it unmaps a segment (the memory of a pool) or deregisters a
// window (a segment that a group can access). If hold returns an error, the unmapping or
// deregistration is still done, but returns that error. HoldEnds applies to pools, groups and
// adopted communicators that are created afterwards.
func HoldEnds(rt *Runtime, hold func() error) {
	hookCommunicator := func(c driver.Communicator) driver.Communicator {
		return deregisterHook{Communicator: c, hold: hold}
	}
	rt.device = endHook{
		connectHook: connectHook{Device: rt.device, joined: hookCommunicator},
		hold:        hold,
	}
}

// endHook is a device whose arenas and communicators call hold. It adopts any communicator handle.
// The embedded connectHook hooks the communicators of groups.
type endHook struct {
	connectHook
	hold func() error
}

func (d endHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return hookedArena{Arena: a, hold: d.hold}, err
}

// hookedArena is the address range of a pool. Its segments call hold.
type hookedArena struct {
	driver.Arena
	hold func() error
}

func (a hookedArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	return hookedSegment{Segment: s, hold: a.hold}, err
}

// hookedSegment is a segment that calls hold before it is unmapped.
type hookedSegment struct {
	driver.Segment
	hold func() error
}

func (s hookedSegment) Unmap() error {
	holdErr := s.hold()
	unmapErr := s.Segment.Unmap()
	return errors.Join(holdErr, unmapErr)
}

// deregisterHook is a group's communicator whose windows call hold.
type deregisterHook struct {
	driver.Communicator
	hold func() error
}

func (c deregisterHook) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	if hooked, ok := memory.(hookedSegment); ok {
		memory = hooked.Segment // the communicator accepts only segments of its device
	}

	w, err := c.Communicator.Register(ctx, key, memory)
	return hookedWindow{Window: w, hold: c.hold}, err
}

// hookedWindow is a window that calls hold before it is deregistered.
type hookedWindow struct {
	driver.Window
	hold func() error
}

func (w hookedWindow) Deregister() error {
	holdErr := w.hold()
	deregisterErr := w.Window.Deregister()
	return errors.Join(holdErr, deregisterErr)
}

// AdoptStream is not needed by the tests.
func (endHook) AdoptStream(uintptr) (driver.AdoptedStream, error) { return nil, ErrUnsupported }

// AdoptCommunicator ignores the handle.
func (d endHook) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator(d), nil
}

// loneCommunicator simulates a communicator of another library that has only this rank. Its windows
// call hold.
type loneCommunicator endHook

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return hookedWindow{Window: loneWindow{}, hold: c.hold}, nil
}

// loneWindow has only the method Deregister, which does nothing. The embedded interface is nil, so
// other methods panic.
type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
