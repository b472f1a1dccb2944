package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// HoldEnds makes rt call hold before each unmapping of a segment and each deregistration of a
// window, which then return its error. This applies to pools, groups and adopted communicators that
// are created afterwards.
func HoldEnds(rt *Runtime, hold func() error) {
	rt.device = endHook{connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		return deregisterHook{c, hold}
	}}, hold}
}

type endHook struct {
	connectHook
	hold func() error
}

func (d endHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return endingArena{a, d.hold}, err
}

type endingArena struct {
	driver.Arena
	hold func() error
}

func (a endingArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	return endingSegment{s, a.hold}, err
}

type endingSegment struct {
	driver.Segment
	hold func() error
}

func (s endingSegment) Unmap() error {
	return errors.Join(s.hold(), s.Segment.Unmap())
}

type deregisterHook struct {
	driver.Communicator
	hold func() error
}

func (c deregisterHook) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	if hooked, ok := memory.(endingSegment); ok {
		memory = hooked.Segment
	}
	w, err := c.Communicator.Register(ctx, key, memory)
	return endingWindow{w, c.hold}, err
}

type endingWindow struct {
	driver.Window
	hold func() error
}

func (w endingWindow) Deregister() error {
	return errors.Join(w.hold(), w.Window.Deregister())
}

func (endHook) AdoptStream(uintptr) (driver.AdoptedStream, error) { return nil, ErrUnsupported }

func (d endHook) AdoptCommunicator(uintptr) (driver.AdoptedCommunicator, error) {
	return loneCommunicator(d), nil
}

// loneCommunicator is a communicator of another library with one rank.
type loneCommunicator endHook

func (loneCommunicator) Size() int { return 1 }

func (loneCommunicator) Rank() int { return 0 }

func (loneCommunicator) Exchange(_ context.Context, payload []byte) ([][]byte, error) {
	return [][]byte{payload}, nil
}

func (c loneCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return endingWindow{loneWindow{}, c.hold}, nil
}

type loneWindow struct{ driver.Window }

func (loneWindow) Deregister() error { return nil }
