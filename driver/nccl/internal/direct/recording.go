package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Recording is a capture of a group's calls in a CUDA graph. Calls must run in the same order on
// all ranks. Another library can replay its graph without notice, so the graph itself must keep the
// order. The first call waits for replayEvent (an event after the group's earlier calls), and each
// later call waits for the previous call. After the last call, eventRecordNode records replayEvent.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // position of the last call

	// Only captures of other libraries use the following fields.

	lastStream      cuda.Stream // stream of the last call
	lastCallNodes   []cuda.Node // graph nodes at which the last call ends
	eventRecordNode cuda.Node   // 0 before the first call
}

// NextPosition assigns a position to the next call in the capture.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// Recordings numbers the captures of a group's calls. Callers of its methods must hold the
// communicator's mu.
type Recordings struct {
	captureCount      uint64       // captures so far; the same on all ranks
	foreignRecordings []*Recording // captures of other libraries, ordered by their latest use
}

// MaxOpenRecordings limits the foreign recordings, because symmem does not notice when another
// library ends a capture.
const MaxOpenRecordings = 16

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	beforeFirstCall := driver.Recorded{Capture: r.captureCount, Call: 0}
	return &Recording{captureID: captureID, lastPosition: beforeFirstCall}
}

// IsKnown reports whether there is a recording of another library's capture.
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
		const leastRecentlyUsed = 0
		r.foreignRecordings = slices.Delete(r.foreignRecordings, leastRecentlyUsed, 1)
	}

	recording := r.NewRecording(captureID)
	r.foreignRecordings = append(r.foreignRecordings, recording)
	return recording
}

// Launch adds a call to a capture of another library. queueCall queues the call on stream s. The
// CUDA context must be current.
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

// waitForPrevious makes stream s wait for the previous call in the capture. Before the first call,
// it makes s wait for replayEvent.
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

// recordAfterCall makes eventRecordNode follow the call that has just been added on stream s,
// instead of the previous call. If CUDA rejects this, recordAfterCall adds another node, because
// CUDA cannot remove nodes during a capture.
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
	isFirst := r.eventRecordNode == 0
	if isFirst {
		return r.addEventRecord(capture.Graph, r.lastCallNodes, replayEvent, gpu)
	}

	detachErr := r.detachEventRecord(capture.Graph, previousNodes, gpu)
	if detachErr == nil {
		return r.attachEventRecord(capture.Graph, gpu)
	}

	// The old node stays, and the new node must record the event after it.
	dependencies := append(slices.Clone(r.lastCallNodes), r.eventRecordNode)
	return r.addEventRecord(capture.Graph, dependencies, replayEvent, gpu)
}

func (r *Recording) addEventRecord(
	graph cuda.Graph, dependencies []cuda.Node, replayEvent *stream.Point, gpu *cuda.Driver,
) (err error) {
	r.eventRecordNode, err = gpu.GraphAddEventRecord(graph, dependencies, replayEvent.Handle)
	return err
}

// detachEventRecord makes eventRecordNode not wait for nodes.
func (r *Recording) detachEventRecord(
	graph cuda.Graph, nodes []cuda.Node, gpu *cuda.Driver,
) error {
	waitingNodes := r.repeatEventRecord(len(nodes))
	return gpu.GraphRemoveDependencies(graph, nodes, waitingNodes)
}

// attachEventRecord makes eventRecordNode wait for the last call.
func (r *Recording) attachEventRecord(graph cuda.Graph, gpu *cuda.Driver) error {
	nodes := r.lastCallNodes
	waitingNodes := r.repeatEventRecord(len(nodes))
	return gpu.GraphAddDependencies(graph, nodes, waitingNodes)
}

// repeatEventRecord returns a slice of eventRecordNode. CUDA requires the waiting node of each
// dependency, even if all dependencies have the same one.
func (r *Recording) repeatEventRecord(times int) []cuda.Node {
	return slices.Repeat([]cuda.Node{r.eventRecordNode}, times)
}
