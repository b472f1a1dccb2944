package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recording is a capture of a group's calls in a CUDA graph. Calls must run in the same order on
// all ranks, but another library can replay its graph without notice. Therefore, the graph itself
// keeps the order: its first call waits for an event, replayEvent, each other call waits for the
// previous one, and eventRecordNode records replayEvent after the last call.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // numbers of the capture and its last call, from 1

	// Only captures of other libraries use the following fields.

	lastStream      cuda.Stream // stream of the last call
	lastCallNodes   []cuda.Node // graph nodes at which the last call ends
	eventRecordNode cuda.Node   // 0 before the first call
}

// NextPosition returns a new position for the next call in the capture.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// Recordings numbers the captures with calls of a group. Callers of its methods must hold the
// communicator's mu.
type Recordings struct {
	captureCount      uint64       // captures so far, the same number on all ranks
	foreignRecordings []*Recording // captures of other libraries, the most recently used one last
}

// MaxOpenRecordings is the maximum number of foreign recordings. It is limited because symmem does
// not see when another library ends a capture.
const MaxOpenRecordings = 16

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	beforeFirst := driver.Recorded{Capture: r.captureCount}
	return &Recording{captureID: captureID, lastPosition: beforeFirst}
}

// IsKnown reports whether GetOrBegin would return an existing recording.
func (r *Recordings) IsKnown(captureID uint64) bool { return r.indexOf(captureID) >= 0 }

func (r *Recordings) indexOf(captureID uint64) int {
	hasID := func(recording *Recording) bool { return recording.captureID == captureID }
	return slices.IndexFunc(r.foreignRecordings, hasID)
}

// GetOrBegin returns the recording of another library's capture, and begins it if necessary. Beyond
// MaxOpenRecordings, it drops the least recently used recording.
func (r *Recordings) GetOrBegin(captureID uint64) *Recording {
	if i := r.indexOf(captureID); i >= 0 {
		recording := r.foreignRecordings[i]
		r.foreignRecordings = slices.Delete(r.foreignRecordings, i, i+1)
		r.foreignRecordings = append(r.foreignRecordings, recording) // now the most recently used
		return recording
	}

	if len(r.foreignRecordings) == MaxOpenRecordings {
		r.foreignRecordings = slices.Delete(r.foreignRecordings, 0, 1)
	}

	recording := r.NewRecording(captureID)
	r.foreignRecordings = append(r.foreignRecordings, recording)
	return recording
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

	return r.recordAfterCall(order.replayEvent, s.CUDA, gpu)
}

// waitForPrevious makes stream s, which captures the next call, wait for the previous call or, if
// there is none, for replayEvent.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	isFirst := len(r.lastCallNodes) == 0
	if isFirst {
		return gpu.StreamWaitEventExternal(s, replayEvent.Handle)
	}

	if r.lastStream == s {
		return nil // a stream keeps the order
	}

	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}

	var missingNodes []cuda.Node
	for _, n := range r.lastCallNodes {
		if !slices.Contains(capture.Dependencies, n) {
			missingNodes = append(missingNodes, n)
		}
	}

	if len(missingNodes) == 0 {
		return nil
	}

	return gpu.AddCaptureDependencies(s, missingNodes)
}

// recordAfterCall moves eventRecordNode from the previous call to the one that has just been added
// on stream s. If CUDA rejects the move, recordAfterCall adds another such node, because CUDA
// cannot remove nodes during a capture.
func (r *Recording) recordAfterCall(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}

	previousNodes := r.lastCallNodes
	r.lastStream = s
	r.lastCallNodes = capture.Dependencies // of the stream's next work
	dependencies := r.lastCallNodes
	hasEventRecord := r.eventRecordNode != 0
	if hasEventRecord {
		detachErr := r.detachEventRecord(capture.Graph, previousNodes, gpu)
		if detachErr == nil {
			return r.attachEventRecord(capture.Graph, gpu)
		}

		// The old node stays, and the new node must record the event after it.
		dependencies = append(slices.Clone(r.lastCallNodes), r.eventRecordNode)
	}

	r.eventRecordNode, err = gpu.GraphAddEventRecord(capture.Graph, dependencies,
		replayEvent.Handle)
	return err
}

// detachEventRecord removes nodes from the dependencies of eventRecordNode.
func (r *Recording) detachEventRecord(
	graph cuda.Graph, nodes []cuda.Node, gpu *cuda.Driver,
) error {
	return gpu.GraphRemoveDependencies(graph, nodes, r.repeatEventRecord(len(nodes)))
}

// attachEventRecord makes eventRecordNode wait for the last call.
func (r *Recording) attachEventRecord(graph cuda.Graph, gpu *cuda.Driver) error {
	nodes := r.lastCallNodes
	return gpu.GraphAddDependencies(graph, nodes, r.repeatEventRecord(len(nodes)))
}

// repeatEventRecord returns eventRecordNode as the waiting node of several dependencies. CUDA takes
// dependencies as two slices of the same length, of awaited and of waiting nodes.
func (r *Recording) repeatEventRecord(times int) []cuda.Node {
	return slices.Repeat([]cuda.Node{r.eventRecordNode}, times)
}
