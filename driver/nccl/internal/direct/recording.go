package direct

import (
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// A stream can capture calls: CUDA adds them to a graph instead of running them, and later replays
// the graph. A graph has nodes, such as kernels. A node waits for its dependencies: other nodes.
//
// Captures with calls of a group are numbered from 1, and so are the calls in each. For
// example, the second call in the group's first capture has the position {Capture: 1, Call: 2}.
//
// Calls of a group must run in the same order on all ranks. Suppose that another library captures
// the calls A and B of a group. It can replay them without notice to symmem. So the graph itself
// must keep the order, with the help of an event, replayEvent:
//
//   - Before A, the graph waits for replayEvent. Each launch outside the graph records this event
//     after its call. So a replay waits for earlier launches.
//   - B waits for A.
//   - A node of the graph records replayEvent after B. Later launches wait for the event.

// Recording is a capture with calls of a group.
type Recording struct {
	captureID    uint64          // CUDA's ID, or 0 for a capture of symmem
	lastPosition driver.Recorded // position of the last call

	// Only captures of other libraries use the following fields.

	lastStream      cuda.Stream // stream of the last call
	lastCallNodes   []cuda.Node // nodes at which the last call ends; empty before the first call
	eventRecordNode cuda.Node   // records replayEvent; 0 before the first call
}

// NextPosition assigns a position to the next call in the capture, and returns it.
func (r *Recording) NextPosition() driver.Recorded {
	r.lastPosition.Call++
	return r.lastPosition
}

// Recordings numbers the captures with calls of a group. Callers of its methods must hold the
// communicator's mu.
type Recordings struct {
	captureCount uint64 // number of captures so far, the same on all ranks
	// foreignRecordings holds captures of other libraries. The most recently used one is last.
	foreignRecordings []*Recording
}

// MaxOpenRecordings is the number of captures of other libraries that Recordings keeps. There is a
// limit because symmem does not see when such a capture ends.
const MaxOpenRecordings = 16

// NewRecording returns the recording of a new capture. captureID is 0 for a capture of symmem.
func (r *Recordings) NewRecording(captureID uint64) *Recording {
	r.captureCount++
	beforeFirst := driver.Recorded{Capture: r.captureCount}
	return &Recording{captureID: captureID, lastPosition: beforeFirst}
}

// IsKnown reports whether GetOrBegin would return an existing recording.
func (r *Recordings) IsKnown(captureID uint64) bool { return r.indexOf(captureID) >= 0 }

// indexOf returns the index of a capture of another library, or -1.
func (r *Recordings) indexOf(captureID uint64) int {
	hasID := func(recording *Recording) bool { return recording.captureID == captureID }
	return slices.IndexFunc(r.foreignRecordings, hasID)
}

// GetOrBegin returns the recording of another library's capture. If there is none, it begins one,
// and forgets the least recently used one if there would be more than MaxOpenRecordings.
func (r *Recordings) GetOrBegin(captureID uint64) *Recording {
	if i := r.indexOf(captureID); i >= 0 {
		recording := r.foreignRecordings[i]
		// Move it to the end, because it is now the most recently used one.
		r.foreignRecordings = slices.Delete(r.foreignRecordings, i, i+1)
		r.foreignRecordings = append(r.foreignRecordings, recording)
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

// waitForPrevious makes the next call in the capture, on stream s, wait for the previous call. The
// first call waits for replayEvent instead.
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

	// capture.Dependencies are the nodes for which the next call already waits.
	isDependency := func(n cuda.Node) bool { return slices.Contains(capture.Dependencies, n) }
	missingNodes := slices.DeleteFunc(slices.Clone(r.lastCallNodes), isDependency)
	if len(missingNodes) == 0 {
		return nil
	}

	return gpu.AddCaptureDependencies(s, missingNodes)
}

// recordAfterCall makes each replay record replayEvent after the call that has just been added on
// stream s. For this, it moves eventRecordNode, which was after the previous call. If CUDA rejects
// the move, it adds another such node, because CUDA cannot remove a node during a capture.
func (r *Recording) recordAfterCall(
	replayEvent *stream.Point, s cuda.Stream, gpu *cuda.Driver,
) error {
	capture, err := gpu.CaptureInfo(s)
	if err != nil {
		return err
	}

	previousNodes := r.lastCallNodes
	r.lastStream = s
	r.lastCallNodes = capture.Dependencies // the stream's next work would wait for these nodes
	newNodeDependencies := r.lastCallNodes
	isFirst := r.eventRecordNode == 0
	if !isFirst {
		removeErr := r.detachEventRecord(capture.Graph, previousNodes, gpu)
		if removeErr == nil {
			return r.attachEventRecord(capture.Graph, gpu)
		}

		// CUDA has rejected the move. The new node must also come after the old one.
		newNodeDependencies = append(slices.Clone(r.lastCallNodes), r.eventRecordNode)
	}

	r.eventRecordNode, err = gpu.GraphAddEventRecord(capture.Graph, newNodeDependencies,
		replayEvent.Handle)
	return err
}

// detachEventRecord makes eventRecordNode no longer wait for nodes.
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

// repeatEventRecord returns a slice that contains eventRecordNode the given number of times. CUDA
// takes dependencies as two slices of the same length: the awaited nodes, and the waiting nodes.
func (r *Recording) repeatEventRecord(times int) []cuda.Node {
	return slices.Repeat([]cuda.Node{r.eventRecordNode}, times)
}
