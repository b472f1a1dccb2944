package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recordings numbers the captures that contain calls of a group. The communicator's mu must be held
// during calls of its methods.
type Recordings struct {
	// count is the number of the latest capture. Captures are numbered from 1, in the same way on
	// all ranks.
	count uint64
	// open lists captures of other libraries, ordered by their last use. Since the end of such a
	// capture is not visible, open keeps the OpenRecordings most recently used captures.
	open []*Recording
}

// OpenRecordings limits how many captures of other libraries can contain calls of a group at the
// same time. If an older capture gets another call, it is treated as a new capture.
const OpenRecordings = 16

// Recording is a capture that contains calls of a group.
type Recording struct {
	id   uint64          // CUDA's ID, for a capture of another library
	last driver.Recorded // position of the last call
	// Calls of the group in a capture of another library are serialized. stream is the stream of
	// the last call. tips are the last graph nodes of that call. end is the node after tips that
	// records LaunchOrder.replayEvent.
	stream cuda.Stream
	tips   []cuda.Node
	end    cuda.Node
}

// Begin assigns a number to a capture and returns its recording. id is CUDA's ID of the capture.
func (r *Recordings) Begin(id uint64) *Recording {
	r.count++
	return &Recording{id: id, last: driver.Recorded{Capture: r.count}}
}

// Has reports whether the capture with a CUDA ID is known.
func (r *Recordings) Has(id uint64) bool {
	return slices.ContainsFunc(r.open, func(open *Recording) bool { return open.id == id })
}

// Of returns the recording of the capture with a CUDA ID. If the capture is new, Of begins a
// recording.
func (r *Recordings) Of(id uint64) *Recording {
	for i, open := range r.open {
		if open.id == id {
			r.open = append(slices.Delete(r.open, i, i+1), open) // the last used one is last
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
	r.last.Call++
	return r.last
}

// waitForPrevious makes the next work on a stream wait for the group's previous call. That call is
// in the capture or precedes the launch of the graph.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, on cuda.Stream, gpu *cuda.Driver,
) error {
	switch {
	case len(r.tips) == 0:
		return gpu.StreamWaitEventExternal(on, replayEvent.Handle)
	case r.stream == on:
		return nil // the stream orders the two calls
	}
	capture, err := gpu.CaptureInfo(on)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(r.tips), func(n cuda.Node) bool {
		return slices.Contains(capture.Tips, n)
	})
	if len(missing) == 0 {
		return nil // the owner has made this stream wait for the previous stream
	}
	return gpu.CaptureAfter(on, missing)
}

// recordLatest makes each launch of the graph record replayEvent after the latest call. The end of
// the capture is not visible, so each new call moves the recording node behind itself. During a
// capture, CUDA does not allow nodes to be removed, but their dependencies can be changed. If that
// fails, recordLatest adds another node.
func (r *Recording) recordLatest(
	replayEvent *stream.Point, on cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(on)
	if err != nil {
		return err
	}
	previousTips := r.tips
	r.stream, r.tips = on, capture.Tips
	dependencies := capture.Tips
	if r.end != 0 {
		if gpu.GraphRemoveDependencies(capture.Graph, previousTips,
			repeat(r.end, len(previousTips))) == nil {
			return gpu.GraphAddDependencies(capture.Graph, capture.Tips,
				repeat(r.end, len(capture.Tips)))
		}
		dependencies = append(slices.Clone(capture.Tips), r.end)
	}
	r.end, err = gpu.GraphAddEventRecord(capture.Graph, dependencies, replayEvent.Handle)
	return err
}

func repeat(n cuda.Node, times int) []cuda.Node { return slices.Repeat([]cuda.Node{n}, times) }

// Launch adds a call to a capture of another library, after the group's earlier calls in the
// capture. Launch must be called on a thread of the context.
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
