package nccl

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// recorder puts collectives of a communicator into captures of other libraries.
type recorder struct{ *communicator }

// Record puts a collective into a capture of the stream's owner.
func (c *communicator) Record(on driver.Stream, p driver.Plan) error {
	return recorder{c}.record(on, p)
}

// record puts a collective into a capture of the stream's owner.
func (c recorder) record(on driver.Stream, p driver.Plan) error {
	s, err := c.device.streams.Own(on)
	if err != nil {
		return err
	}
	prepared, ok := p.(*plan)
	if !ok || prepared.c != c.communicator {
		return errors.New("recording a collective: the plan is of another group")
	}
	if prepared.Operation.PointToPoint() {
		return unrecordable(prepared)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.noteReplays(), errors.Join(s.Usable(), c.Cause(), c.open())); err != nil {
		return err
	}
	r, err := c.recordingOf(s)
	if err != nil {
		return err
	}
	prepared = prepared.recordedAs(r.Next())
	if err := c.compareRecorded(prepared); err != nil {
		return err
	}
	if err := c.device.gpu.Do(func() error { return c.countUses(prepared, s) }); err != nil {
		return fmt.Errorf("keeping what a graph of another library uses: %w", err)
	}
	c.history.note(&prepared.Call, 0, prepared.meetings)
	s.AddGroup(c.group)
	s.Recording, c.recording = true, r
	defer func() { s.Recording, c.recording = false, nil }()
	return c.call(prepared, s)
}

// recordingOf finds the capture that an adopted stream is in.
func (c recorder) recordingOf(s *stream.Stream) (*direct.Recording, error) {
	var at cuda.Capture
	err := c.device.gpu.With(func(gpu *cuda.Driver) (err error) {
		at, err = gpu.CaptureInfo(s.CUDA)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("recording a collective: %w", err)
	case at.Status == cuda.CaptureNone:
		return nil, fmt.Errorf("recording a collective: %w", driver.ErrNotCapturing)
	case at.Status == cuda.CaptureInvalidated:
		return nil, fmt.Errorf("recording a collective: %w", cuda.ErrCaptureInvalidated)
	case !c.recordings.Has(at.ID) && c.captures.Has(at.ID):
		return nil, fmt.Errorf("recording a collective: group %s has come to %d captures since its last "+
			"call in this one: %w", c.cfg.Name(), direct.OpenRecordings, driver.ErrUnsupported)
	}
	return c.recordings.Of(at.ID), nil
}

// noteReplays notes that another library captures calls of the group: from then on the watcher
// looks at what replays report. It also asks what they have reported so far. c.mu is held.
func (c recorder) noteReplays() error {
	if !c.replayed.Swap(true) {
		c.busy.WakeWatcher()
	}
	return c.checkKernels()
}

// compareRecorded compares a call that is put into a capture. No stream is noted as having work:
// nothing runs, and CUDA must not be asked about a stream that is captured. c.mu is held.
func (c recorder) compareRecorded(p *plan) error {
	if !c.check.Load() || p.kernel != nil && c.direct.announcements != nil {
		return nil
	}
	ticket := c.plane.Submit()
	c.history.reach(ticket)
	return c.compareNow(p, ticket)
}

// unrecordable refuses a message.
func unrecordable(p *plan) error {
	return fmt.Errorf("recording %v in a capture of another library: %w", p.Operation,
		driver.ErrUnsupported)
}

// countUses has what a call uses live as long as the graph that it is put into. s.Mu and c.mu
// are held.
func (c recorder) countUses(p *plan, s *stream.Stream) error {
	h, err := c.captures.For(s.CUDA)
	if h == nil || err != nil {
		return err
	}
	h.Use(useCountsOf(p))
	if p.byNCCL() {
		c.recorded.plain = c.recorded.plain || p.Path != driver.PathWindow
		c.recorded.windows = c.recorded.windows || p.Path == driver.PathWindow
	}
	return nil
}

// useCountsOf are those of what a call touches.
func useCountsOf(p *plan) (used []*memory.UseCount) {
	for _, in := range []driver.Window{p.SendWindow, p.RecvWindow} {
		if w, ok := in.(*window); ok && w != nil {
			used = append(used, &w.uses)
		}
	}
	at := []uintptr{p.Send, p.Recv}
	if p.Norm != nil {
		at = append(at, p.Norm.Residual, p.Norm.Weight)
	}
	for _, address := range at {
		if s := p.c.device.memory.SegmentAt(address); s != nil {
			used = append(used, &s.Uses)
		}
	}
	return used
}
