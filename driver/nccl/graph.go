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

// calls are what a graph has of groups: each launch gives them new tickets and numbers.
type calls struct {
	gpu *gpu.GPU
	// all are the collectives and messages, in the order of capture.
	all []*captured
	// users are their communicators, each once, in the order of their numbers; recordings are the
	// numbers that they have given the capture, and running are those whose calls take turns.
	users      []*communicator
	recordings map[*communicator]*direct.Recording
	running    []*communicator
}

// captured is a call in a graph.
type captured struct {
	plan    *plan
	message *p2p.Captured // nil for a collective
}

// newCalls makes the calls of a graph.
func newCalls(g *gpu.GPU) stream.Calls {
	return &calls{gpu: g, recordings: map[*communicator]*direct.Recording{}}
}

// Record puts a call into the capture. It gets its ticket when the graph is launched. The locks of
// stream and communicator are held.
func (g *calls) Record(s *stream.Stream, of driver.Plan) error {
	p := of.(*plan)
	c := p.c
	if err := errors.Join(c.Cause(), c.open()); err != nil {
		return err
	}
	if !p.Operation.PointToPoint() {
		p = p.recordedAs(g.next(c))
		if err := c.call(p, s); err != nil {
			return err
		}
		g.add(&captured{plan: p})
		return nil
	}
	s.Capture.Waits = true // also a Send, for the message of the launch before to be taken
	return c.messages.Record(s, p.message(), func(m *p2p.Captured) {
		g.add(&captured{plan: p, message: m})
	})
}

// add notes a call that is in the capture.
func (g *calls) add(k *captured) {
	g.all = append(g.all, k)
	c := k.plan.c
	if !slices.Contains(g.users, c) {
		g.users = append(g.users, c)
		slices.SortFunc(g.users, byNumber)
		c.graphs.Add(1)
	}
	takes := c.direct.unavailable == "" && !k.plan.Operation.PointToPoint()
	if takes && !slices.Contains(g.running, c) {
		g.running = append(g.running, c)
	}
}

func byNumber(a, b *communicator) int { return cmp.Compare(a.number, b.number) }

// next returns the place of the next call of a group. Its mu is held.
func (g *calls) next(c *communicator) driver.Recorded {
	r := g.recordings[c]
	if r == nil {
		r = c.recorder.recordings.Begin(0)
		g.recordings[c] = r
	}
	return r.Next()
}

// Launch gives the collectives their tickets and queues the graph. The locks of graph and stream
// are held.
func (g *calls) Launch(graph *stream.Graph, s *stream.Stream) error {
	for _, c := range g.users {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	for _, c := range g.users {
		if err := c.open(); err != nil {
			return s.Refuse(c.group, err)
		}
	}
	var sent, received []*p2p.End
	for i, k := range g.all {
		p := k.plan
		if k.message != nil {
			e, err := k.message.Launch(s)
			if err != nil {
				g.failUnqueued(i, err)
				return err
			}
			if p.Operation == driver.Send {
				sent = append(sent, e)
			} else {
				received = append(received, e)
			}
		} else if err := p.c.admit(s, p); err != nil {
			g.failUnqueued(i, err)
			return s.Refuse(p.c.group, err)
		}
	}
	for _, e := range received {
		e.Expect()
	}
	launched := false
	gpu := g.gpu
	err := gpu.Do(func() (err error) {
		if launched, err = g.queue(graph, s, gpu.CUDA); err == nil {
			err = errors.Join(g.follow(graph, s, gpu.CUDA, sent), s.RecordQueued())
		}
		return err
	})
	if err != nil {
		for _, e := range received {
			if !launched { // else the stream comes to the wait, which ends with the group
				e.Unexpect()
			}
		}
		g.failUnqueued(len(g.all), err)
		for _, c := range g.users {
			s.MarkReported(c.group)
		}
	}
	return err
}

// queue gives the graph to CUDA, and reports whether CUDA has it. s.Mu is held.
func (g *calls) queue(
	graph *stream.Graph, s *stream.Stream, gpu *cuda.Driver,
) (launched bool, err error) {
	for _, c := range g.running {
		if err := c.direct.order.Begin(c.group, s, false, gpu); err != nil {
			return false, err
		}
	}
	err = graph.Queue(s)
	return err == nil, err
}

// follow queues what comes behind a launch. s.Mu is held.
func (g *calls) follow(
	graph *stream.Graph, s *stream.Stream, gpu *cuda.Driver, sent []*p2p.End,
) error {
	for _, c := range g.running {
		if err := c.direct.order.End(s, gpu); err != nil {
			return err
		}
	}
	for _, e := range sent {
		if err := e.Track(s); err != nil {
			return err
		}
	}
	return graph.Follow(s)
}

// failUnqueued fails the communicators of the first n calls, which others take for launched.
func (g *calls) failUnqueued(n int, err error) {
	for _, k := range g.all[:n] {
		_ = k.plan.c.faults.failUnqueued(&k.plan.Call, err)
	}
}

// Close lets the communicators go, and takes back what messages have if all launches have ended.
func (g *calls) Close(ended bool) {
	var messages []*p2p.Captured
	for _, k := range g.all {
		if k.message != nil {
			messages = append(messages, k.message)
		}
	}
	for _, c := range g.users {
		if ended {
			c.messages.ReleaseGraph(messages)
		}
		c.graphs.Done()
	}
}
