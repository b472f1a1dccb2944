package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recording is a capture of a group's calls in a CUDA graph.
//
// Calls must run in the same order on all ranks. Another library can replay its graph without
// notice, so the graph itself must keep the order. The first call in the graph waits for
// LaunchOrder.replayEvent, and each later call waits for the previous one. eventRecordNode records
// replayEvent after the last call.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // position of the last call

	// These fields are used only in captures of other libraries.
	lastStream      cuda.Stream // stream of the last call
	lastCallNodes   []cuda.Node // graph nodes at which the last call ends
	eventRecordNode cuda.Node   // 0 before the first call
}

// NextPosition assigns a position to the next call in the capture.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// Recordings assigns numbers to the captures of a group's calls. Callers of its methods must hold
// the communicator's mu.
type Recordings struct {
	captureCount      uint64       // the same on all ranks
	foreignRecordings []*Recording // captures of other libraries, ordered by their latest use
}

// MaxOpenRecordings is the maximum length of foreignRecordings. symmem does not notice when another
// library ends a capture.
const MaxOpenRecordings = 16

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	return &Recording{captureID: captureID, lastPosition: driver.Recorded{Capture: r.captureCount}}
}

// HasCapture reports whether another library's capture has a recording.
func (r *Recordings) HasCapture(captureID uint64) bool { return r.indexOf(captureID) >= 0 }

func (r *Recordings) indexOf(captureID uint64) int {
	hasID := func(recording *Recording) bool { return recording.captureID == captureID }
	return slices.IndexFunc(r.foreignRecordings, hasID)
}

// GetOrBegin returns the recording of another library's capture. If there is none, it begins one,
// and may drop the least recently used recording.
func (r *Recordings) GetOrBegin(captureID uint64) *Recording {
	if i := r.indexOf(captureID); i >= 0 {
		recording := r.foreignRecordings[i]
		r.foreignRecordings = slices.Delete(r.foreignRecordings, i, i+1)
		r.foreignRecordings = append(r.foreignRecordings, recording) // now the most recently used
		return recording
	}

	if len(r.foreignRecordings) == MaxOpenRecordings {
		r.foreignRecordings = slices.Delete(r.foreignRecordings, 0, 1) // the least recently used
	}

	recording := r.NewRecording(captureID)
	r.foreignRecordings = append(r.foreignRecordings, recording)
	return recording
}

// Launch adds a call, which queueCall queues on stream s, to another library's capture. The CUDA
// context must be current.
func (r *Recording) Launch(
	order *LaunchOrder, s *stream.Stream, streams *stream.Streams, queueCall func() error,
) error {
	api := streams.GPU.CUDA
	if err := order.makeReplayEvent(streams); err != nil {
		return err
	}

	if err := r.waitForPrevious(order.replayEvent, s.CUDA, api); err != nil {
		return err
	}

	if err := queueCall(); err != nil {
		return err
	}

	return r.recordAfterCall(order.replayEvent, s.CUDA, api)
}

// waitForPrevious makes stream s wait for the previous call in the capture. Before the first call,
// it makes s wait for replayEvent.
func (r *Recording) waitForPrevious(
	replayEvent *stream.Point, s cuda.Stream, api *cuda.Driver,
) error {
	isFirst := len(r.lastCallNodes) == 0
	if isFirst {
		return api.StreamWaitEventExternal(s, replayEvent.Handle)
	}

	if r.lastStream == s {
		return nil // a stream keeps the order
	}

	capture, err := api.CaptureInfo(s)
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

	return api.AddCaptureDependencies(s, missingNodes)
}

// recordAfterCall makes eventRecordNode follow the call that has just been added on stream s,
// instead of the previous call. If CUDA rejects this, recordAfterCall adds a second node, which
// follows both the call and the first node.
func (r *Recording) recordAfterCall(
	replayEvent *stream.Point, s cuda.Stream, api *cuda.Driver,
) error {
	capture, err := api.CaptureInfo(s)
	if err != nil {
		return err
	}

	previousNodes := r.lastCallNodes
	r.lastStream = s
	r.lastCallNodes = capture.Dependencies // the nodes that the stream's next work would wait for
	newDependencies := r.lastCallNodes
	isFirst := r.eventRecordNode == 0
	if !isFirst {
		removeErr := api.GraphRemoveDependencies(
			capture.Graph, previousNodes, r.repeatEventRecord(len(previousNodes)))
		if removeErr == nil {
			return api.GraphAddDependencies(
				capture.Graph, r.lastCallNodes, r.repeatEventRecord(len(r.lastCallNodes)))
		}

		newDependencies = append(slices.Clone(r.lastCallNodes), r.eventRecordNode)
	}

	r.eventRecordNode, err = api.GraphAddEventRecord(
		capture.Graph, newDependencies, replayEvent.Handle)
	return err
}

// repeatEventRecord returns a list that contains eventRecordNode nodeCount times.
func (r *Recording) repeatEventRecord(nodeCount int) []cuda.Node {
	return slices.Repeat([]cuda.Node{r.eventRecordNode}, nodeCount)
}
