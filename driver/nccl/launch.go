package nccl

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Launch queues a prepared collective on a stream. If calls are compared, it first waits until
// every rank has reached the same call, so that mismatched calls never reach NCCL.
//
// The common case is inlined, because each function call here costs about ten nanoseconds.
func (c *communicator) Launch(target driver.Stream, p driver.Plan) error {
	s, err := c.device.streams.Lookup(target)
	if err != nil {
		return err
	}

	prepared, ok := p.(*plan)
	if !ok || prepared.c != c {
		return errForeignPlan
	}

	if !prepared.singleCall.Prepared() || prepared.runMeter != nil || c.device.gpu.Relaxed.Load() {
		err := c.launch(s, prepared)
		if err != nil || prepared.Path != driver.PathTwoLevel {
			return err
		}

		sample := c.runTimer.startSteps(prepared.runMeter, s)
		err = launchSteps(prepared, s, func(level *communicator, step *plan) error {
			return level.launch(s, step)
		})
		c.runTimer.stopSteps(sample, s)
		return err
	}

	s.Mu.Lock()
	s.ClearWaitedFor() // must come first, so that a group that fails later reports its fault to s
	c.mu.Lock()
	if s.Closed() || s.Capture != nil || c.isClosing.Load() || c.comparisonEnabled.Load() ||
		c.busy.WindowKernels.Load() && prepared.Path != driver.PathWindow ||
		c.direct.unavailableReason == "" && c.direct.order.LatestStream() != s {
		c.mu.Unlock()
		s.Mu.Unlock()
		return c.launch(s, prepared)
	}

	// The following lines do the same as launch in the common case.
	if ticket, ok := c.plane.TrySubmit(); ok {
		c.recordLaunch(s, prepared, ticket)
		c.direct.order.IsLatestOnlyNCCL = true
		if err = prepared.singleCall.On(s.CUDA); err != nil {
			err = s.Refuse(c.group, c.faults.failAfterQueueError(&prepared.Call, err))
		}
	} else {
		err = s.Refuse(c.group, c.faults.failAfterPeer(&prepared.Call))
	}

	c.mu.Unlock()
	s.Mu.Unlock()
	return err
}

// launch implements Launch for a plan without steps.
func (c *communicator) launch(s *stream.Stream, p *plan) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.ClearWaitedFor()
	if s.Adopted() || p.Operation == driver.Recv {
		if err := c.recordOtherGroups(s, p); err != nil {
			return err
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Closed() || s.Capture != nil || c.isClosing.Load() || p.Operation.PointToPoint() {
		return c.launchSpecial(s, p)
	}

	if p.Path != driver.PathWindow && c.busy.WindowKernels.Load() && c.busy.Idle(s) {
		c.busy.WindowKernels.Store(false) // else the teardown would not abort NCCL to stop this call
	}

	var err error
	if c.recorder.wasCaptured.Load() {
		err = c.faults.checkKernels()
	}

	if err == nil {
		err = c.admit(s, p)
	}

	if err == nil {
		err = c.enqueue(p, s)
	}

	if err != nil {
		return s.Refuse(c.group, err)
	}

	return nil
}

// recordOtherGroups makes the other groups record their events before work that may be delayed: a
// Recv, or anything on a stream of another library. It requires s.Mu.
func (c *communicator) recordOtherGroups(s *stream.Stream, p *plan) error {
	switch {
	case s.Capture != nil || s.Closed():
		return nil
	case p.Operation.PointToPoint():
		return s.RecordGroups(nil)
	default:
		return s.RecordGroups(c.group)
	}
}

var errForeignPlan = errors.New("launching a collective: the plan belongs to another group")

// launchSpecial is for captured calls and messages. It requires s.Mu and c.mu.
func (c *communicator) launchSpecial(s *stream.Stream, p *plan) error {
	if err := s.CheckOpen(); err != nil {
		return err
	}

	if s.Capture != nil {
		return s.Capture.Calls.Record(s, p)
	}

	if err := c.checkOpen(); err != nil {
		return s.Refuse(c.group, err)
	}

	return c.messages.Transfer(s, messagePlan(p))
}

// checkOpen requires c.mu, because Close waits for all work that was admitted earlier.
func (c *communicator) checkOpen() error {
	if !c.isClosing.Load() {
		return nil
	}

	if cause := c.plane.Cause(); cause != nil {
		return cause
	}

	return fmt.Errorf("launching on group %s: %w", c.cfg.Name(), driver.ErrClosed)
}

// admit assigns a ticket (a number in the group's order) to a collective. It compares the
// collective across ranks or, if calls are not compared, returns an error when a peer has failed,
// because NCCL might wait for that peer forever. The caller must hold s.Mu and c.mu.
func (c *communicator) admit(s *stream.Stream, p *plan) error {
	check := c.comparisonEnabled.Load()
	var ticket uint64
	if check {
		ticket = c.plane.Submit()
		c.comparer.announce(&p.Call, ticket)
	} else {
		var ok bool
		if ticket, ok = c.plane.TrySubmit(); !ok {
			return c.faults.failAfterPeer(&p.Call)
		}
	}

	c.recordLaunch(s, p, ticket)
	if check {
		return c.comparer.compare(&p.Call, ticket, p.kernel != nil)
	}

	return nil
}

// recordLaunch must be called before a collective is queued. It requires s.Mu and c.mu.
func (c *communicator) recordLaunch(s *stream.Stream, p *plan, ticket uint64) {
	c.history.recordCollective(&p.Call, ticket, p.exchangeKernelCount)
	if !c.busy.IsAdded(s) {
		c.busy.Add(s)
	}

	if p.usesNCCL() {
		running := &c.busy.OtherKernels
		if p.Path == driver.PathWindow {
			running = &c.busy.WindowKernels
		}

		running.Store(true)
	}

	if !c.isLevel { // in a level, the stream waits for the call of the two-level group
		s.SetLastCall(c.group, ticket, p.Operation)
	}
}

// enqueue requires s.Mu and c.mu.
func (c *communicator) enqueue(p *plan, s *stream.Stream) error {
	if p.isEmpty() {
		return nil
	}

	err := c.device.gpu.With(func(gpu *cuda.Driver) error {
		return errors.Join(c.enqueueInOrder(p, s, gpu), s.RecordQueued())
	})
	if err != nil {
		return c.faults.failAfterQueueError(&p.Call, err)
	}

	return nil
}

// enqueueInOrder requires s.Mu, c.mu and a current CUDA context.
func (c *communicator) enqueueInOrder(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	switch {
	case c.direct.unavailableReason != "":
		return queueTimed(&c.runTimer, p, s, gpu) // NCCL keeps its own calls in order
	case s.Recording:
		return queueRecorded(c, p, s, gpu)
	case s.Capture != nil:
		return p.queue(s, gpu) // each launch of the graph is ordered as a whole
	}

	order := &c.direct.order
	err := order.Begin(c.group, s, p.isOrderedByNCCL(), gpu)
	if err == nil {
		err = queueTimed(&c.runTimer, p, s, gpu)
	}

	if err == nil {
		err = order.End(s, gpu)
	}

	return err
}

func queueTimed(t *runTimer, p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	if p.runMeter == nil {
		return p.queue(s, gpu)
	}

	sample := t.start(p.runMeter, s.CUDA, gpu)
	err := p.queue(s, gpu)
	t.stop(sample, s.CUDA, gpu)
	return err
}

func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, count: call.Count}
}

// List returns a plan that runs several plans together: as one group of NCCL calls or, on the
// direct path (symmem's own kernels), as kernels that gather several tensors. It returns an error
// if the plans are on different paths, or if they cannot run together.
func (c *communicator) List(plans []driver.Plan) (driver.Plan, error) {
	list, err := newList(c, plans)
	if err != nil {
		return nil, err
	}

	return list, nil
}

// Record adds a call to the capture on a stream of another library.
func (c *communicator) Record(target driver.Stream, prepared driver.Plan) error {
	s, err := c.device.streams.Lookup(target)
	if err != nil {
		return err
	}

	p, ok := prepared.(*plan)
	if !ok || p.c != c {
		return errors.New("recording a collective: the plan belongs to another group")
	}

	err = recordCall(c, s, p)
	if err != nil || p.Path != driver.PathTwoLevel {
		return err
	}

	return launchSteps(p, s, func(level *communicator, step *plan) error {
		return recordCall(level, s, step)
	})
}

func recordCall(c *communicator, s *stream.Stream, p *plan) error {
	if p.Operation.PointToPoint() {
		return fmt.Errorf("recording %v in a capture of another library: %w", p.Operation,
			driver.ErrUnsupported)
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	err := cmp.Or(c.recorder.begin(), errors.Join(s.CheckOpen(), c.Cause(), c.checkOpen()))
	if err != nil {
		return err
	}

	recording, err := c.recorder.findRecording(s)
	if err != nil {
		return err
	}

	p = p.copyAt(recording.NextPosition())
	if c.comparisonEnabled.Load() {
		if err := c.comparer.compareCaptured(&p.Call, p.kernel != nil); err != nil {
			return err
		}
	}

	if p.usesNCCL() && p.Path != driver.PathWindow {
		c.comm.mayMapCaptured.Store(true)
	}

	err = c.device.gpu.Do(func() error {
		return c.recorder.holdMemory(s, p.useCounts(), p.Path, p.usesNCCL())
	})
	if err != nil {
		return fmt.Errorf("keeping the memory of a graph of another library: %w", err)
	}

	const noTicket = 0
	c.history.recordCollective(&p.Call, noTicket, p.exchangeKernelCount)
	s.AddGroup(c.group)
	s.Recording, c.recorder.currentRecording = true, recording
	defer func() { s.Recording, c.recorder.currentRecording = false, nil }()
	return c.enqueue(p, s)
}

// queueRecorded queues a call of recordCall. It requires s.Mu and c.mu.
func queueRecorded(c *communicator, p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	return c.recorder.currentRecording.Launch(&c.direct.order, s, c.device.streams, func() error {
		return p.queue(s, gpu)
	})
}
