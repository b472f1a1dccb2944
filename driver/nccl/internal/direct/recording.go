package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recordings numbers the captures that contain calls of a group. Its methods must be called with
// the communicator's mu held.
type Recordings struct {
	// count is the number of captures so far, equal on all ranks; they are numbered from 1.
	count uint64
	// open lists captures of other libraries that may be active. Their ends are not visible, so the
	// latest ones are kept.
	open []*Recording
}

// OpenRecordings is the number of captures of other libraries that can contain calls of a group at
// the same time. Calls in an older capture are numbered as those of a new one.
const OpenRecordings = 16

// Recording tracks the calls of a group in one capture.
type Recording struct {
	id    uint64 // CUDA's ID, for a capture of another library
	place driver.Recorded
	// The calls of the group in a capture of another library are serialized. on is the stream of the
	// last call, tips are the graph nodes at its end, and end is the node behind them that records
	// LaunchOrder.replayEvent.
	on   cuda.Stream
	tips []cuda.Node
	end  cuda.Node
}

// Begin numbers a capture.
func (r *Recordings) Begin(id uint64) *Recording {
	r.count++
	return &Recording{id: id, place: driver.Recorded{Capture: r.count}}
}

// Has reports whether the capture with CUDA's ID is known.
func (r *Recordings) Has(id uint64) bool {
	return slices.ContainsFunc(r.open, func(open *Recording) bool { return open.id == id })
}

// Of returns the recording of the capture with CUDA's ID, and begins it if it is new.
func (r *Recordings) Of(id uint64) *Recording {
	for i, open := range r.open {
		if open.id == id {
			r.open = append(slices.Delete(r.open, i, i+1), open) // the latest one is last
			return open
		}
	}
	if len(r.open) == OpenRecordings {
		r.open = slices.Delete(r.open, 0, 1)
	}
	r.open = append(r.open, r.Begin(id))
	return r.open[len(r.open)-1]
}

// Next returns the position of the next call.
func (r *Recording) Next() driver.Recorded {
	r.place.Call++
	return r.place
}

// waitForPrevious makes the next work on a stream wait for the previous call of the group, in the
// capture or before the launch of the graph.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, on cuda.Stream, gpu *cuda.Driver,
) error {
	switch {
	case len(r.tips) == 0:
		return gpu.StreamWaitEventExternal(on, replayEvent.Handle)
	case r.on == on:
		return nil // ordered by the stream
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

// recordLatest makes each launch of the graph record replayEvent after the latest call. The end of
// the capture is not visible, so the recording node is moved behind each new call: CUDA forbids
// removing nodes from a graph under capture, but not changing their dependencies. If that fails, a
// further node is added.
func (r *Recording) recordLatest(
	replayEvent *stream.Point, on cuda.Stream, gpu *cuda.Driver,
) error {
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
	r.end, err = gpu.GraphAddEventRecord(at.Graph, behind, replayEvent.Handle)
	return err
}

func repeated(n cuda.Node, times int) []cuda.Node { return slices.Repeat([]cuda.Node{n}, times) }

// Launch captures a call for another library, after the calls of the group that are in the capture
// already. It must be called on a thread of the context.
func (r *Recording) Launch(
	t *LaunchOrder, s *stream.Stream, d *stream.Streams, queue func() error,
) error {
	gpu := d.GPU.CUDA
	err := t.makeReplayEvent(d)
	if err == nil {
		err = r.waitForPrevious(t.replayEvent, s.CUDA, gpu)
	}
	if err == nil {
		err = queue()
	}
	if err == nil {
		err = r.recordLatest(t.replayEvent, s.CUDA, gpu)
	}
	return err
}
