package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds makes rt call hold before it unmaps a segment or deregisters a window. If hold returns
// an error, the unmapping or deregistration is still done, but returns that error. HoldEnds
// applies to pools, groups and adopted communicators that are created afterwards.
func HoldEnds(rt *Runtime, hold func() error) {
	hookCommunicator := func(c driver.Communicator) driver.Communicator {
		return deregisterHook{c, hold}
	}
	rt.device = endHook{connectHook{rt.device, hookCommunicator}, hold}
}

// endHook is a device whose arenas and communicators call hold. It adopts any communicator handle.
type endHook struct {
	connectHook
	hold func() error
}

func (d endHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return hookedArena{a, d.hold}, err
}

type hookedArena struct {
	driver.Arena
	hold func() error
}

func (a hookedArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	return hookedSegment{s, a.hold}, err
}

type hookedSegment struct {
	driver.Segment
	hold func() error
}

func (s hookedSegment) Unmap() error {
	return errors.Join(s.hold(), s.Segment.Unmap())
}

// deregisterHook is a communicator whose windows call hold.
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
	return hookedWindow{w, c.hold}, err
}

type hookedWindow struct {
	driver.Window
	hold func() error
}

func (w hookedWindow) Deregister() error {
	return errors.Join(w.hold(), w.Window.Deregister())
}

func (endHook) AdoptStream(uintptr) (driver.AdoptedStream, error) { return nil, ErrUnsupported }

func (d endHook) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator(d), nil
}

// loneCommunicator simulates a communicator of another library that has only this rank.
type loneCommunicator endHook

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return hookedWindow{loneWindow{}, c.hold}, nil
}

type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
