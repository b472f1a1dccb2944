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

// MaxOpenRecordings is the number of captures of other libraries that Recordings keeps. There is a
// limit because symmem does not see when such a capture ends.
const MaxOpenRecordings = 16

// Recording is a capture that contains calls of a group. In a capture of another library, it also
// adds the dependencies that make each replay of the graph wait for the group's earlier launches.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // position of the last call: number of the capture and of the call

	// Only captures of other libraries use the following fields.

	lastStream    cuda.Stream // stream of the last call
	lastCallNodes []cuda.Node // nodes at which the last call ends; empty before the first call
	// eventRecordNode is the node that records LaunchOrder.replayEvent, or 0 before the first call.
	// Launches after a replay wait for replayEvent.
	eventRecordNode cuda.Node
}

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	beforeFirst := driver.Recorded{Capture: r.captureCount}
	return &Recording{captureID: captureID, lastPosition: beforeFirst}
}

// IsKnown reports whether GetOrBegin would return an existing recording.
func (r *Recordings) IsKnown(captureID uint64) bool {
	hasID := func(recording *Recording) bool { return recording.captureID == captureID }
	return slices.ContainsFunc(r.foreignRecordings, hasID)
}

// GetOrBegin returns the recording of another library's capture. If there is none, it begins one.
// In that case, it forgets the least recently used recording if there are MaxOpenRecordings.
func (r *Recordings) GetOrBegin(captureID uint64) *Recording {
	for i, recording := range r.foreignRecordings {
		if recording.captureID == captureID {
			// Move it to the end, because it is now the most recently used one.
			r.foreignRecordings = slices.Delete(r.foreignRecordings, i, i+1)
			r.foreignRecordings = append(r.foreignRecordings, recording)
			return recording
		}
	}

	if len(r.foreignRecordings) == MaxOpenRecordings {
		r.foreignRecordings = slices.Delete(r.foreignRecordings, 0, 1)
	}

	recording := r.NewRecording(captureID)
	r.foreignRecordings = append(r.foreignRecordings, recording)
	return recording
}

// NextPosition assigns a position to the next call in the capture, and returns it.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// waitForPrevious makes the next call in the capture, on stream s, wait for the previous call. The
// first call of the capture waits for replayEvent instead. In each replay, that event marks the
// end of the group's launches before the replay.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	isFirst := len(r.lastCallNodes) == 0
	if isFirst {
		return gpu.StreamWaitEventExternal(s, replayEvent.Handle)
	}

	if r.lastStream == s {
		return nil // work on one stream runs in order
	}

	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}

	isDependency := func(n cuda.Node) bool { return slices.Contains(capture.Dependencies, n) }
	missingNodes := slices.DeleteFunc(slices.Clone(r.lastCallNodes), isDependency)
	if len(missingNodes) == 0 {
		return nil // the stream already waits for the previous call
	}

	return gpu.AddCaptureDependencies(s, missingNodes)
}

// recordLatest makes each replay record replayEvent after the call that has just been added on
// stream s. It moves eventRecordNode from the previous call to this one. If CUDA rejects the move,
// it adds another such node, because CUDA cannot remove a node during a capture.
func (r *Recording) recordLatest(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}

	previousNodes := r.lastCallNodes
	callNodes := capture.Dependencies // the stream's next work would wait for the call at these nodes
	r.lastStream = s
	r.lastCallNodes = callNodes
	dependencies := callNodes
	if r.eventRecordNode != 0 {
		removedEnds := repeatNode(r.eventRecordNode, len(previousNodes))
		removeErr := gpu.GraphRemoveDependencies(capture.Graph, previousNodes, removedEnds)
		if removeErr == nil {
			addedEnds := repeatNode(r.eventRecordNode, len(callNodes))
			return gpu.GraphAddDependencies(capture.Graph, callNodes, addedEnds)
		}

		// CUDA has rejected the move. The new node must come after the old one.
		dependencies = append(slices.Clone(callNodes), r.eventRecordNode)
	}

	r.eventRecordNode, err = gpu.GraphAddEventRecord(capture.Graph, dependencies, replayEvent.Handle)
	return err
}

// repeatNode returns a slice that contains node the given number of times. CUDA takes dependencies
// as two slices, from and to, of the same length.
func repeatNode(node cuda.Node, times int) []cuda.Node {
	return slices.Repeat([]cuda.Node{node}, times)
}

// Launch adds a call to a capture of another library, after the group's earlier calls. queueCall
// queues the call on stream s. The CUDA context must be current.
func (r *Recording) Launch(
	order *LaunchOrder, s *stream.Stream, streams *stream.Streams, queueCall func() error,
) error {
	gpu := streams.GPU.CUDA
	if err := order.makeReplayEvent(streams); err != nil {
		return err
	}

	if err := r.waitForPrevious(order.replayEvent, s.CUDA, gpu); err != nil {
		return err
	}

	if err := queueCall(); err != nil {
		return err
	}

	return r.recordLatest(order.replayEvent, s.CUDA, gpu)
}
