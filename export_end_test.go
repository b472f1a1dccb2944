package symmem

import (
	"context"

	"symmem/driver"
)

// HoldEnds makes rt call hold before the backend unmaps a segment of a pool, or deregisters a window
// of a group, that is created afterwards.
func HoldEnds(rt *Runtime, hold func()) {
	rt.device = endHook{connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		return deregisterHook{c, hold}
	}}, hold}
}

type endHook struct {
	connectHook
	hold func()
}

func (d endHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.connectHook.NewArena(bytes)
	return endingArena{a, d.hold}, err
}

type endingArena struct {
	driver.Arena
	hold func()
}

func (a endingArena) Map(offset, bytes int64) (driver.Segment, error) {
	s, err := a.Arena.Map(offset, bytes)
	return endingSegment{s, a.hold}, err
}

type endingSegment struct {
	driver.Segment
	hold func()
}

func (s endingSegment) Unmap() error {
	s.hold()
	return s.Segment.Unmap()
}

type deregisterHook struct {
	driver.Communicator
	hold func()
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
	hold func()
}

func (w endingWindow) Deregister() error {
	w.hold()
	return w.Window.Deregister()
}
