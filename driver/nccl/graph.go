package nccl

import (
	"cmp"
	"errors"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// graphCalls implements stream.Calls. It holds the calls of groups that one CUDA graph contains.
// The calls may belong to several groups. Each launch of the graph gives each collective a new
// ticket, its number in the group.
type graphCalls struct {
	gpu           *gpu.GPU
	calls         []*capturedCall // in the order of the capture
	communicators []*communicator // of all calls, in the order in which they are locked
	// recordings give each collective of a communicator a position, its number in the capture.
	recordings map[*communicator]*direct.Recording
	// orderedCommunicators have a collective in the graph and use symmem's own kernels (direct
	// kernels). These and NCCL's kernels must run in the same order on all ranks, so each
	// communicator's direct.LaunchOrder orders the launches of the graph.
	orderedCommunicators []*communicator
	// windowCommunicators have calls on the window path, on which NCCL's kernels access registered
	// memory.
	windowCommunicators []*communicator
}

// capturedCall is one call in a graph.
type capturedCall struct {
	plan    *plan
	message *p2p.CapturedMessage // nil for a collective
	// plainUses are the counts of the segments that the call uses. Each count includes the call
	// until the graph is closed. The slice is empty unless hasPlainKernels returns true. NCCL may
	// have mapped the segments of such a call on other ranks.
	plainUses []*memory.UseCount
}

func newGraphCalls(g *gpu.GPU) stream.Calls {
	return &graphCalls{gpu: g, recordings: map[*communicator]*direct.Recording{}}
}

// Record adds a call to the graph that stream s is capturing. The caller must hold the locks of
// the stream and the communicator.
func (gc *graphCalls) Record(s *stream.Stream, preparedPlan driver.Plan) error {
	p := preparedPlan.(*plan)
	c := p.c
	if err := errors.Join(c.Cause(), c.checkOpen()); err != nil {
		return err
	}

	if !p.Operation.PointToPoint() {
		position := gc.nextPosition(c)
		p = p.copyAt(position)
		if err := c.enqueue(p, s); err != nil {
			return err
		}

		gc.add(&capturedCall{plan: p})
		return nil
	}

	// In each launch, a Send waits until the previous launch's message has been copied.
	s.Capture.HasOtherWaits = true
	addMessage := func(m *p2p.CapturedMessage) {
		gc.add(&capturedCall{plan: p, message: m})
	}
	return c.messages.Record(s, messagePlan(p), addMessage)
}

// add appends a call to gc.calls. It also adds the call's communicator c to the lists of
// communicators. A call with plain kernels becomes a user of its segments. add requires c.mu.
func (gc *graphCalls) add(call *capturedCall) {
	gc.calls = append(gc.calls, call)
	c := call.plan.c
	if !slices.Contains(gc.communicators, c) {
		gc.communicators = append(gc.communicators, c)
		slices.SortFunc(gc.communicators, compareLockPositions)
		c.openGraphs.Add(1)
	}

	if call.plan.Path == driver.PathWindow && !slices.Contains(gc.windowCommunicators, c) {
		gc.windowCommunicators = append(gc.windowCommunicators, c)
		c.windowGraphs.Add(1)
	}

	if call.hasPlainKernels() {
		c.comm.mayMapCaptured.Store(true)
		call.plainUses = call.plan.segmentUseCounts()
		c.device.memory.UseCounts.AddPlainCalls(call.plainUses)
	}

	needsOrder := c.direct.unavailableReason == "" && !call.plan.Operation.PointToPoint()
	if needsOrder && !slices.Contains(gc.orderedCommunicators, c) {
		gc.orderedCommunicators = append(gc.orderedCommunicators, c)
	}
}

// hasPlainKernels reports whether the call launches plain kernels: NCCL kernels that do not access
// windows (memory registered with NCCL).
func (call *capturedCall) hasPlainKernels() bool {
	return call.message == nil && call.plan.usesNCCL() && call.plan.Path != driver.PathWindow
}

// compareLockPositions puts communicators in the order in which they are locked.
func compareLockPositions(a, b *communicator) int {
	return cmp.Compare(a.lockPosition, b.lockPosition)
}

// nextPosition assigns a position in the capture to c's next collective and returns it. It requires
// c.mu.
func (gc *graphCalls) nextPosition(c *communicator) driver.Recorded {
	r := gc.recordings[c]
	if r == nil {
		const ownCapture = 0 // CUDA's ID is needed only for captures of other libraries
		r = c.recorder.recordings.NewRecording(ownCapture)
		gc.recordings[c] = r
	}

	return r.NextPosition()
}

// Launch assigns tickets to the collectives and queues the graph on stream s. After an error, it
// makes the groups fail whose calls have already been announced, because other ranks expect these
// calls. The caller must hold the locks of the graph and the stream.
func (gc *graphCalls) Launch(graph *stream.Graph, s *stream.Stream) error {
	for _, c := range gc.communicators {
		c.mu.Lock()
		defer c.mu.Unlock() // when Launch returns
	}

	for _, c := range gc.communicators {
		if err := c.checkOpen(); err != nil {
			return s.Refuse(c.group, err)
		}
	}

	var sends, receives []*p2p.End
	for announcedCount, call := range gc.calls {
		p := call.plan
		if call.message == nil { // a collective
			if err := p.c.admit(s, p); err != nil {
				gc.failCommunicators(announcedCount, err)
				return s.Refuse(p.c.group, err)
			}

			continue
		}

		messageEnd, err := call.message.PrepareLaunch(s)
		if err != nil {
			gc.failCommunicators(announcedCount, err)
			return err
		}

		if p.Operation == driver.Send {
			sends = append(sends, messageEnd)
		} else {
			receives = append(receives, messageEnd)
		}
	}

	for _, messageEnd := range receives {
		messageEnd.AddReceive()
	}

	isQueued := false
	err := gc.gpu.Do(func() error {
		if err := gc.queueGraph(graph, s, gc.gpu.CUDA); err != nil {
			return err
		}

		isQueued = true
		afterErr := gc.queueAfterGraph(graph, s, gc.gpu.CUDA, sends)
		recordErr := s.RecordQueued()
		return errors.Join(afterErr, recordErr)
	})
	if err != nil {
		if !isQueued { // a queued graph uses the receives until the teardown
			for _, messageEnd := range receives {
				messageEnd.RemoveReceive()
			}
		}

		gc.failCommunicators(len(gc.calls), err) // all calls have been announced
		for _, c := range gc.communicators {
			s.MarkReported(c.group)
		}
	}

	return err
}

// queueGraph makes stream s wait for the latest launches of the groups, and queues the graph. It
// requires s.Mu.
func (gc *graphCalls) queueGraph(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver,
) error {
	const isOnlyNCCL = false // the graph may contain direct kernels
	for _, c := range gc.orderedCommunicators {
		if err := c.direct.order.Begin(c.group, s, isOnlyNCCL, api); err != nil {
			return err
		}
	}

	return graph.Queue(s)
}

// queueAfterGraph takes the steps that follow queueGraph: it ends the launch in each group's
// direct.LaunchOrder, adds the graph's sends and records the graph's events. It requires s.Mu.
func (gc *graphCalls) queueAfterGraph(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver, sends []*p2p.End,
) error {
	for _, c := range gc.orderedCommunicators {
		if err := c.direct.order.End(s, api); err != nil {
			return err
		}
	}

	for _, e := range sends {
		if err := e.AddSend(s); err != nil {
			return err
		}
	}

	return graph.RecordEvents(s)
}

// failCommunicators makes the groups of the first callCount calls fail with err, because other
// ranks expect these calls.
func (gc *graphCalls) failCommunicators(callCount int, err error) {
	for _, call := range gc.calls[:callCount] {
		// The result is the cause of the failure, which the streams report.
		_ = call.plan.c.faults.failAfterQueueError(&call.plan.Call, err)
	}
}

// Close ends the graph's use of the communicators and the segments, which can then be freed. If
// allCompleted is set, which means that all launches have completed, it also frees the resources of
// the graph's messages. It may wait for other ranks.
func (gc *graphCalls) Close(allCompleted bool) {
	var messages []*p2p.CapturedMessage
	for _, call := range gc.calls {
		if call.message != nil {
			messages = append(messages, call.message)
		}
	}

	for _, c := range gc.communicators {
		if allCompleted {
			c.messages.ReleaseGraph(messages)
		}

		c.openGraphs.Done()
	}

	for _, c := range gc.windowCommunicators {
		c.windowGraphs.Add(-1)
	}

	for _, call := range gc.calls {
		if len(call.plainUses) > 0 {
			call.plan.c.device.memory.UseCounts.EndPlainCalls(call.plainUses)
		}
	}
}
