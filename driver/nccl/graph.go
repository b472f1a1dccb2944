package nccl

import (
	"cmp"
	"errors"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// calls holds the group calls captured in one graph. Each launch of the graph assigns new tickets
// (numbers in the group's order) to the collectives, and new numbers to the messages.
type calls struct {
	gpu *gpu.GPU
	// all holds the collectives and messages in the order of capture.
	all []*capturedCall
	// users lists the communicators that the calls use, sorted by number.
	users []*communicator
	// recordings holds the recording of each communicator that has collectives in the graph.
	recordings map[*communicator]*direct.Recording
	// ordered holds the communicators whose launches must be ordered (direct.LaunchOrder).
	ordered []*communicator
	// windowed holds the communicators with calls on the window path.
	windowed []*communicator
}

// capturedCall is a collective or a message in a graph.
type capturedCall struct {
	plan    *plan
	message *p2p.Captured // nil for a collective
}

func newCalls(g *gpu.GPU) stream.Calls {
	return &calls{gpu: g, recordings: map[*communicator]*direct.Recording{}}
}

// Record adds a call to the capture. The caller must hold the locks of the stream and the
// communicator.
func (cs *calls) Record(s *stream.Stream, planned driver.Plan) error {
	p := planned.(*plan)
	c := p.c
	if err := errors.Join(c.Cause(), c.checkOpen()); err != nil {
		return err
	}
	if !p.Operation.PointToPoint() {
		p = p.recordedAs(cs.next(c))
		if err := c.enqueue(p, s); err != nil {
			return err
		}
		cs.add(&capturedCall{plan: p})
		return nil
	}
	s.Capture.Waits = true // a Send also waits, until the previous launch's message is copied
	return c.messages.Record(s, messagePlan(p), func(m *p2p.Captured) {
		cs.add(&capturedCall{plan: p, message: m})
	})
}

func (cs *calls) add(k *capturedCall) {
	cs.all = append(cs.all, k)
	c := k.plan.c
	if !slices.Contains(cs.users, c) {
		cs.users = append(cs.users, c)
		slices.SortFunc(cs.users, byNumber)
		c.graphs.Add(1)
	}
	if k.plan.Path == driver.PathWindow && !slices.Contains(cs.windowed, c) {
		cs.windowed = append(cs.windowed, c)
		c.windowGraphs.Add(1)
	}
	needsOrder := c.direct.unavailable == "" && !k.plan.Operation.PointToPoint()
	if needsOrder && !slices.Contains(cs.ordered, c) {
		cs.ordered = append(cs.ordered, c)
	}
}

func byNumber(a, b *communicator) int { return cmp.Compare(a.number, b.number) }

// next returns the position of c's next call in the capture. The caller must hold c.mu.
func (cs *calls) next(c *communicator) driver.Recorded {
	r := cs.recordings[c]
	if r == nil {
		r = c.recorder.recordings.Begin(0)
		cs.recordings[c] = r
	}
	return r.Next()
}

// Launch assigns tickets and message numbers, and queues the graph. The caller must hold the locks
// of the graph and the stream.
func (cs *calls) Launch(graph *stream.Graph, s *stream.Stream) error {
	for _, c := range cs.users {
		c.mu.Lock() // in the order of their numbers
		defer c.mu.Unlock()
	}
	for _, c := range cs.users {
		if err := c.checkOpen(); err != nil {
			return s.Refuse(c.group, err)
		}
	}
	var sent, received []*p2p.End
	for i, k := range cs.all {
		p := k.plan
		if k.message != nil {
			e, err := k.message.Launch(s)
			if err != nil {
				cs.failUnqueued(i, err)
				return err
			}
			if p.Operation == driver.Send {
				sent = append(sent, e)
			} else {
				received = append(received, e)
			}
		} else if err := p.c.admit(s, p); err != nil {
			cs.failUnqueued(i, err)
			return s.Refuse(p.c.group, err)
		}
	}
	for _, e := range received {
		e.Expect()
	}
	launched := false
	err := cs.gpu.Do(func() (err error) {
		if launched, err = cs.queue(graph, s, cs.gpu.CUDA); err == nil {
			err = errors.Join(cs.queueFollowing(graph, s, cs.gpu.CUDA, sent), s.RecordQueued())
		}
		return err
	})
	if err != nil {
		for _, e := range received {
			if !launched { // a launched graph makes the stream wait until the teardown
				e.Unexpect()
			}
		}
		cs.failUnqueued(len(cs.all), err)
		for _, c := range cs.users {
			s.MarkReported(c.group)
		}
	}
	return err
}

// queue launches the graph after the earlier launches of its groups, and reports whether CUDA
// accepted the launch. The caller must hold s.Mu.
func (cs *calls) queue(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver,
) (launched bool, err error) {
	for _, c := range cs.ordered {
		if err := c.direct.order.Begin(c.group, s, false, api); err != nil {
			return false, err
		}
	}
	err = graph.Queue(s)
	return err == nil, err
}

// queueFollowing queues the work that follows a launch of the graph. The caller must hold s.Mu.
func (cs *calls) queueFollowing(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver, sent []*p2p.End,
) error {
	for _, c := range cs.ordered {
		if err := c.direct.order.End(s, api); err != nil {
			return err
		}
	}
	for _, e := range sent {
		if err := e.Track(s); err != nil {
			return err
		}
	}
	return graph.RecordEvents(s)
}

// failUnqueued makes the communicators of the first n calls fail, because other ranks assume that
// these calls have been launched.
func (cs *calls) failUnqueued(n int, err error) {
	for _, k := range cs.all[:n] {
		_ = k.plan.c.faults.failUnqueued(&k.plan.Call, err)
	}
}

// Close releases the communicators. If ended is set, all launches have completed, and Close also
// frees the messages' resources.
func (cs *calls) Close(ended bool) {
	var messages []*p2p.Captured
	for _, k := range cs.all {
		if k.message != nil {
			messages = append(messages, k.message)
		}
	}
	for _, c := range cs.users {
		if ended {
			c.messages.ReleaseGraph(messages)
		}
		c.graphs.Done()
	}
	for _, c := range cs.windowed {
		c.windowGraphs.Add(-1)
	}
}
