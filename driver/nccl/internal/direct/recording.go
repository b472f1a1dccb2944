package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recordings numbers the captures (CUDA graphs under construction) that contain calls of a group.
// Callers of its methods must hold the communicator's mu.
type Recordings struct {
	captureCount uint64 // number of captures so far, the same on all ranks
	// foreignRecordings holds captures of other libraries. The most recently used one is last.
	foreignRecordings []*Recording
}

// MaxOpenRecordings is the number of captures of other libraries that Recordings keeps. symmem
// does not see their ends.
const MaxOpenRecordings = 16

// Recording is a capture that contains calls of a group.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // position of the last call

	// Only captures of other libraries use the following fields.
	lastStream      cuda.Stream // stream of the last call
	lastCallNodes   []cuda.Node // nodes at which the last call ends
	eventRecordNode cuda.Node   // node that records LaunchOrder.replayEvent, or 0
}

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	return &Recording{captureID: captureID, lastPosition: driver.Recorded{Capture: r.captureCount}}
}

// IsKnown reports whether GetOrBegin would return an existing recording.
func (r *Recordings) IsKnown(captureID uint64) bool {
	hasID := func(recording *Recording) bool { return recording.captureID == captureID }
	return slices.ContainsFunc(r.foreignRecordings, hasID)
}

// GetOrBegin returns the recording of another library's capture, which may be new. It forgets the
// least recently used one if there are too many.
func (r *Recordings) GetOrBegin(captureID uint64) *Recording {
	for i, recording := range r.foreignRecordings {
		if recording.captureID == captureID {
			r.foreignRecordings = append(slices.Delete(r.foreignRecordings, i, i+1), recording)
			return recording
		}
	}
	if len(r.foreignRecordings) == MaxOpenRecordings {
		r.foreignRecordings = slices.Delete(r.foreignRecordings, 0, 1)
	}
	r.foreignRecordings = append(r.foreignRecordings, r.NewRecording(captureID))
	return r.foreignRecordings[len(r.foreignRecordings)-1]
}

// NextPosition returns the position of the next call in the capture.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// waitForPrevious makes the next call in the capture follow the previous call or, if there is
// none, the group's launches before each replay.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	switch {
	case len(r.lastCallNodes) == 0:
		return gpu.StreamWaitEventExternal(s, replayEvent.Handle)
	case r.lastStream == s:
		return nil
	}
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}
	missingNodes := slices.DeleteFunc(slices.Clone(r.lastCallNodes), func(n cuda.Node) bool {
		return slices.Contains(capture.Dependencies, n)
	})
	if len(missingNodes) == 0 {
		return nil // the stream already waits for these nodes
	}
	return gpu.AddCaptureDependencies(s, missingNodes)
}

// recordLatest makes each replay record replayEvent after the last call, by moving eventRecordNode.
// If CUDA rejects the move, it adds a node, because CUDA cannot remove one during a capture.
func (r *Recording) recordLatest(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}
	previousNodes := r.lastCallNodes
	r.lastStream, r.lastCallNodes = s, capture.Dependencies
	dependencies := capture.Dependencies
	if r.eventRecordNode != 0 {
		removeErr := gpu.GraphRemoveDependencies(capture.Graph, previousNodes,
			repeatNode(r.eventRecordNode, len(previousNodes)))
		if removeErr == nil {
			return gpu.GraphAddDependencies(capture.Graph, capture.Dependencies,
				repeatNode(r.eventRecordNode, len(capture.Dependencies)))
		}
		dependencies = append(slices.Clone(capture.Dependencies), r.eventRecordNode)
	}
	r.eventRecordNode, err = gpu.GraphAddEventRecord(capture.Graph, dependencies, replayEvent.Handle)
	return err
}

func repeatNode(node cuda.Node, times int) []cuda.Node {
	return slices.Repeat([]cuda.Node{node}, times)
}

// Launch adds a call to a capture of another library, after the group's earlier calls. The CUDA
// context must be current.
func (r *Recording) Launch(
	order *LaunchOrder, s *stream.Stream, streams *stream.Streams, queueCall func() error,
) error {
	gpu := streams.GPU.CUDA
	err := order.makeReplayEvent(streams)
	if err == nil {
		err = r.waitForPrevious(order.replayEvent, s.CUDA, gpu)
	}
	if err == nil {
		err = queueCall()
	}
	if err == nil {
		err = r.recordLatest(order.replayEvent, s.CUDA, gpu)
	}
	return err
}
