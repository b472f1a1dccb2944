package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recordings numbers the captures that contain calls of a group. Callers of its methods must hold
// the communicator's mu.
type Recordings struct {
	// count is the number of the latest capture. It is the same on all ranks.
	count uint64
	// foreign lists the captures of other libraries, with the most recently used one last.
	foreign []*Recording
}

// OpenRecordings limits the captures of other libraries that may get more calls of a group, because
// symmem cannot see when a capture ends.
const OpenRecordings = 16

// Recording is a capture that contains calls of a group.
type Recording struct {
	id   uint64          // CUDA's ID, or 0 for a capture of symmem
	last driver.Recorded // position of the last call

	stream     cuda.Stream // stream of the last call
	lastNodes  []cuda.Node
	recordNode cuda.Node // records LaunchOrder.replayEvent
}

// Begin returns a new recording. id is CUDA's ID of the capture.
func (r *Recordings) Begin(id uint64) *Recording {
	r.count++
	return &Recording{id: id, last: driver.Recorded{Capture: r.count}}
}

// Has reports whether the capture with CUDA's ID is known.
func (r *Recordings) Has(id uint64) bool {
	return slices.ContainsFunc(r.foreign, func(known *Recording) bool { return known.id == id })
}

// Get returns the recording with CUDA's ID, which it begins if necessary.
func (r *Recordings) Get(id uint64) *Recording {
	for i, known := range r.foreign {
		if known.id == id {
			r.foreign = append(slices.Delete(r.foreign, i, i+1), known) // now the last one
			return known
		}
	}
	if len(r.foreign) == OpenRecordings {
		r.foreign = slices.Delete(r.foreign, 0, 1)
	}
	r.foreign = append(r.foreign, r.Begin(id))
	return r.foreign[len(r.foreign)-1]
}

// Next returns the position of the next call.
func (r *Recording) Next() driver.Recorded {
	r.last.Call++
	return r.last
}

// waitForPrevious makes the next work on a stream wait for the group's previous call.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	switch {
	case len(r.lastNodes) == 0:
		return gpu.StreamWaitEventExternal(s, replayEvent.Handle)
	case r.stream == s:
		return nil
	}
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(r.lastNodes), func(n cuda.Node) bool {
		return slices.Contains(capture.Dependencies, n)
	})
	if len(missing) == 0 {
		return nil // the stream already waits for these nodes
	}
	return gpu.AddCaptureDependencies(s, missing)
}

// recordLatest makes each launch of the graph record replayEvent after the latest call. It moves
// the node that records the event, because CUDA does not allow nodes to be removed during a
// capture. If CUDA rejects the change, recordLatest adds another node.
func (r *Recording) recordLatest(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}
	previousNodes := r.lastNodes
	r.stream, r.lastNodes = s, capture.Dependencies
	dependencies := capture.Dependencies
	if r.recordNode != 0 {
		if gpu.GraphRemoveDependencies(capture.Graph, previousNodes,
			repeat(r.recordNode, len(previousNodes))) == nil {
			return gpu.GraphAddDependencies(capture.Graph, capture.Dependencies,
				repeat(r.recordNode, len(capture.Dependencies)))
		}
		dependencies = append(slices.Clone(capture.Dependencies), r.recordNode)
	}
	r.recordNode, err = gpu.GraphAddEventRecord(capture.Graph, dependencies, replayEvent.Handle)
	return err
}

func repeat(n cuda.Node, times int) []cuda.Node { return slices.Repeat([]cuda.Node{n}, times) }

// Launch adds a call to a capture of another library, after the group's earlier calls. The context
// must be current on the thread.
func (r *Recording) Launch(
	order *LaunchOrder, s *stream.Stream, d *stream.Streams, queue func() error,
) error {
	gpu := d.GPU.CUDA
	err := order.makeReplayEvent(d)
	if err == nil {
		err = r.waitForPrevious(order.replayEvent, s.CUDA, gpu)
	}
	if err == nil {
		err = queue()
	}
	if err == nil {
		err = r.recordLatest(order.replayEvent, s.CUDA, gpu)
	}
	return err
}
