package nccl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// recordings are the captures that hold calls of a group. Methods are called with the
// communicator's mu held.
type recordings struct {
	// count is how many there have been: they are numbered from 1, alike on all ranks.
	count uint64
	// open are those of other libraries that may go on. When one ends is not seen, so the latest
	// are kept.
	open []*recording
}

// openRecordings is how many captures of other libraries can hold calls of a group at once. The
// one before counts as over: more calls in it would be those of another capture.
const openRecordings = 16

// recording is a capture that holds calls of a group.
type recording struct {
	id    uint64 // CUDA's, of a capture of another library
	place driver.Recorded
	// The calls of the group in a capture of another library run one after the other: on is the
	// stream of the last one, tips are the nodes that it has made, and end is the node behind them
	// that records the event of turns.replays.
	on   cuda.Stream
	tips []cuda.Node
	end  cuda.Node
}

// begin numbers a capture.
func (r *recordings) begin(id uint64) *recording {
	r.count++
	return &recording{id: id, place: driver.Recorded{Capture: r.count}}
}

// has reports whether the capture with CUDA's number is known.
func (r *recordings) has(id uint64) bool {
	return slices.ContainsFunc(r.open, func(open *recording) bool { return open.id == id })
}

// of finds the capture with CUDA's number, or begins it.
func (r *recordings) of(id uint64) *recording {
	for i, open := range r.open {
		if open.id == id {
			r.open = append(slices.Delete(r.open, i, i+1), open) // the latest one is last
			return open
		}
	}
	if len(r.open) == openRecordings {
		r.open = slices.Delete(r.open, 0, 1)
	}
	r.open = append(r.open, r.begin(id))
	return r.open[len(r.open)-1]
}

// next returns the place of the next call.
func (r *recording) next() driver.Recorded {
	r.place.Call++
	return r.place
}

// recordedAs is the plan as it is in a capture, whose kernels tell the other ranks the place.
func (p *plan) recordedAs(at driver.Recorded) *plan {
	recorded := *p
	recorded.Call = p.RecordedAs(at)
	if p.kernel != nil {
		k := *p.kernel
		k.params = kernels.WithDigest(k.params, recorded.Digest)
		recorded.kernel = &k
	}
	return &recorded
}

// Record puts a collective into a capture of the stream's owner.
func (c *communicator) Record(on driver.Stream, p driver.Plan) error {
	s, err := c.device.streams.Own(on)
	if err != nil {
		return err
	}
	prepared, ok := p.(*plan)
	if !ok || prepared.c != c {
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
	prepared = prepared.recordedAs(r.next())
	if err := c.compareRecorded(prepared); err != nil {
		return err
	}
	if err := c.device.gpu.Do(func() error { return c.keepRecorded(prepared, s) }); err != nil {
		return fmt.Errorf("keeping what a graph of another library uses: %w", err)
	}
	c.history.note(prepared, 0)
	s.Carry(c)
	s.Recording, c.recording = true, r
	defer func() { s.Recording, c.recording = false, nil }()
	return c.call(prepared, s)
}

// recordingOf finds the capture that an adopted stream is in.
func (c *communicator) recordingOf(s *stream.Stream) (*recording, error) {
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
	case !c.recordings.has(at.ID) && c.captures.Has(at.ID):
		return nil, fmt.Errorf("recording a collective: group %s has come to %d captures since its last "+
			"call in this one: %w", c.cfg.Name(), openRecordings, driver.ErrUnsupported)
	}
	return c.recordings.of(at.ID), nil
}

// queueRecorded puts a call into a capture of the stream's owner, behind those of the group that
// are there. s.Mu and c.mu are held.
func (c *communicator) queueRecorded(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	t, r := &c.direct.turns, c.recording
	err := t.awaitReplays(c.device)
	if err == nil {
		err = r.enter(t.replays, s.CUDA, gpu)
	}
	if err == nil {
		err = p.queue(s, gpu)
	}
	if err == nil {
		err = r.leave(t.replays, s.CUDA, gpu)
	}
	return err
}

// enter makes what comes next on a stream wait for the call of the group before it: in the
// capture, or before the launch of the graph.
func (r *recording) enter(turn *stream.Point, on cuda.Stream, gpu *cuda.Driver) error {
	switch {
	case len(r.tips) == 0:
		return gpu.StreamWaitEventExternal(on, turn.Handle)
	case r.on == on:
		return nil // the stream's own order
	}
	at, err := gpu.CaptureInfo(on)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(r.tips), func(n cuda.Node) bool {
		return slices.Contains(at.Tips, n)
	})
	if len(missing) == 0 {
		return nil // the owner has joined the streams
	}
	return gpu.CaptureAfter(on, missing)
}

// leave has each launch of the graph record the event behind the latest call. The end of the
// capture is not seen, so the node that does it is a leaf of the graph that moves: CUDA permits all
// changes of a graph under capture but those that take nodes away. Where it does not permit this
// one there is a further node.
func (r *recording) leave(turn *stream.Point, on cuda.Stream, gpu *cuda.Driver) error {
	at, err := gpu.CaptureInfo(on)
	if err != nil {
		return err
	}
	before := r.tips
	r.on, r.tips = on, at.Tips
	behind := at.Tips
	if r.end != 0 {
		if gpu.GraphRemoveDependencies(at.Graph, before, repeated(r.end, len(before))) == nil {
			return gpu.GraphAddDependencies(at.Graph, at.Tips, repeated(r.end, len(at.Tips)))
		}
		behind = append(slices.Clone(at.Tips), r.end)
	}
	r.end, err = gpu.GraphAddEventRecord(at.Graph, behind, turn.Handle)
	return err
}

func repeated(n cuda.Node, times int) []cuda.Node { return slices.Repeat([]cuda.Node{n}, times) }

// noteReplays notes that another library captures calls of the group: from then on the watcher
// looks at what replays report. It also asks what they have reported so far. c.mu is held.
func (c *communicator) noteReplays() error {
	if !c.replayed.Swap(true) {
		c.busy.Rouse()
	}
	return c.askKernels()
}

// compareRecorded compares a call that is put into a capture. No stream is noted as having work:
// nothing runs, and CUDA must not be asked about a stream that is captured. c.mu is held.
func (c *communicator) compareRecorded(p *plan) error {
	if !c.check.Load() || p.kernel != nil && c.direct.shown != nil {
		return nil
	}
	ticket := c.plane.Submit()
	c.history.reach(ticket)
	c.comparing.Store(&p.Call)
	defer c.comparing.Store(nil)
	return c.plane.Compare(ticket, &p.Call)
}

// unrecordable refuses a message.
func unrecordable(p *plan) error {
	return fmt.Errorf("recording %v in a capture of another library: %w", p.Operation,
		driver.ErrUnsupported)
}

// keepRecorded has what a call uses live as long as the graph that it is put into. s.Mu and c.mu
// are held.
func (c *communicator) keepRecorded(p *plan, s *stream.Stream) error {
	h, err := c.captures.For(s.CUDA)
	if h == nil || err != nil {
		return err
	}
	h.Use(p.keepers())
	if p.kernel == nil && !p.nothing() && len(c.cfg.Ranks) > 1 {
		c.recorded.plain = c.recorded.plain || p.Path != driver.PathWindow
		c.recorded.windows = c.recorded.windows || p.Path == driver.PathWindow
	}
	return nil
}

// keepers are those of what a call touches.
func (p *plan) keepers() (used []*memory.Keeper) {
	for _, in := range []driver.Window{p.SendWindow, p.RecvWindow} {
		if w, ok := in.(*window); ok && w != nil {
			used = append(used, &w.keeper)
		}
	}
	at := []uintptr{p.Send, p.Recv}
	if p.Norm != nil {
		at = append(at, p.Norm.Residual, p.Norm.Weight)
	}
	for _, address := range at {
		if s := p.c.device.memory.SegmentAt(address); s != nil {
			used = append(used, &s.Keeper)
		}
	}
	return used
}
