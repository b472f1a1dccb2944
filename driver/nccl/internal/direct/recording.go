package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recordings are the captures that hold calls of a group. Methods are called with the
// communicator's mu held.
type Recordings struct {
	// count is the number of captures so far, equal on all ranks; they are numbered from 1.
	count uint64
	// open are those of other libraries that may go on. When one ends is not seen, so the latest
	// are kept.
	open []*Recording
}

// OpenRecordings is how many captures of other libraries can hold calls of a group at once. The
// one before counts as over: more calls in it would be those of another capture.
const OpenRecordings = 16

// Recording is a capture that holds calls of a group.
type Recording struct {
	id    uint64 // CUDA's, of a capture of another library
	place driver.Recorded
	// The calls of the group in a capture of another library run one after the other: on is the
	// stream of the last one, tips are the nodes that it has made, and end is the node behind them
	// that records the event of LaunchOrder.replayEvent.
	on   cuda.Stream
	tips []cuda.Node
	end  cuda.Node
}

// Begin numbers a capture.
func (r *Recordings) Begin(id uint64) *Recording {
	r.count++
	return &Recording{id: id, place: driver.Recorded{Capture: r.count}}
}

// Has reports whether the capture with CUDA's number is known.
func (r *Recordings) Has(id uint64) bool {
	return slices.ContainsFunc(r.open, func(open *Recording) bool { return open.id == id })
}

// Of finds the capture with CUDA's number, or begins it.
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

// Next returns the place of the next call.
func (r *Recording) Next() driver.Recorded {
	r.place.Call++
	return r.place
}

// enter makes what comes next on a stream wait for the call of the group before it: in the
// capture, or before the launch of the graph.
func (r *Recording) enter(turn *stream.Point, on cuda.Stream, gpu *cuda.Driver) error {
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
func (r *Recording) leave(turn *stream.Point, on cuda.Stream, gpu *cuda.Driver) error {
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

// Launch puts a call into a capture of another library, behind those of the group that are there.
// It is called on a thread of the context.
func (r *Recording) Launch(
	t *LaunchOrder, s *stream.Stream, d *stream.Streams, queue func() error,
) error {
	gpu := d.GPU.CUDA
	err := t.makeReplayEvent(d)
	if err == nil {
		err = r.enter(t.replayEvent, s.CUDA, gpu)
	}
	if err == nil {
		err = queue()
	}
	if err == nil {
		err = r.leave(t.replayEvent, s.CUDA, gpu)
	}
	return err
}
