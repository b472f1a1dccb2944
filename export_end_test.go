package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds lets a test interrupt the end of a segment or of a window. A segment is a part of a
// pool's memory, which ends when it is unmapped. A window is a segment that a group can access. It
// ends when it is deregistered.
//
// HoldEnds replaces the device of a Runtime by an endHook, which calls the device. The objects that
// the endHook creates are hooks as well: its arena (the address range of a pool) creates segments
// that call the function hold before they end, and its communicators create such windows.

// HoldEnds makes rt call hold before each end of a segment or window. An error of hold is returned,
// but the segment or window ends nevertheless. HoldEnds applies to pools, groups and adopted
// communicators that are created afterwards.
func HoldEnds(rt *Runtime, hold func() error) {
	hookCommunicator := func(c driver.Communicator) driver.Communicator {
		return deregisterHook{Communicator: c, hold: hold}
	}
	rt.device = endHook{
		connectHook: connectHook{Device: rt.device, joined: hookCommunicator},
		hold:        hold,
	}
}

// endHook is the device. It embeds a connectHook, which is also a device: it passes each new
// communicator of a group to a function, here hookCommunicator.
type endHook struct {
	connectHook
	hold func() error
}

func (d endHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return hookedArena{Arena: a, hold: d.hold}, err
}

// hookedArena is an arena whose segments call hold.
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
		memory = hooked.Segment // the hooked communicator accepts only segments of its device
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

// AdoptStream always fails, because the tests of HoldEnds adopt no streams.
func (endHook) AdoptStream(uintptr) (driver.AdoptedStream, error) { return nil, ErrUnsupported }

// AdoptCommunicator accepts any handle of a communicator and ignores it.
func (d endHook) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator(d), nil
}

// loneCommunicator simulates an adopted communicator, which belongs to another library and has only
// this rank. Its windows call hold.
type loneCommunicator endHook

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return hookedWindow{Window: loneWindow{}, hold: c.hold}, nil
}

// loneWindow is a window without memory. Its Deregister does nothing. The embedded interface is
// nil, so other methods panic.
type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
