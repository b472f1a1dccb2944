package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"symmem"
)

// performer is a rank that does a program.
type performer struct {
	ctx     context.Context
	seed    uint64
	p       *program
	m       mistake
	rt      *symmem.Runtime
	groups  []*symmem.Group // by place in p.groups; nil where this rank is not in it
	streams [streams]*symmem.Stream
	events  []*symmem.Event
	graphs  []*symmem.Graph
	data    [][]int32
	memory  []symmem.Memory
	// noise draws what this rank alone does.
	noise *rand.Rand
}

// prepare makes everything that a program needs, and meets the other ranks.
func prepare(
	ctx context.Context, task *erringTask, p *program, m mistake, o symmem.Options,
) (*performer, error) {
	rt, err := symmem.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &performer{ctx: ctx, p: p, m: m, rt: rt, seed: task.Seed<<20 + uint64(task.Program)}
	r.noise = newDraws(r.seed, rt.Rank())
	for _, step := range []func() error{r.split, r.makeStreams, r.makeBuffers, r.capture, r.meet} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *performer) split() error {
	r.groups = make([]*symmem.Group, len(r.p.groups))
	r.groups[0] = r.rt.World()
	for i, colors := range r.p.colors {
		mine := colors[r.rt.Rank()]
		g, err := r.rt.World().Split(r.ctx, mine, 0)
		if err != nil {
			return err
		}
		r.groups[1+2*i+mine] = g
	}
	return nil
}

func (r *performer) makeStreams() (err error) {
	for i := range r.streams {
		if r.streams[i], err = r.rt.NewStream(); err != nil {
			return err
		}
	}
	r.events = make([]*symmem.Event, r.p.events)
	for i := range r.events {
		if r.events[i], err = r.rt.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// makeBuffers makes and fills the buffers. In half of the programs they are registered by the
// collectives that come first, else with all groups at once.
func (r *performer) makeBuffers() error {
	pool, err := r.rt.NewPool(symmem.PoolOptions{
		Domain: r.rt.World(), FirstSegment: 2 << 20,
	})
	if err != nil {
		return err
	}
	for b := range r.p.buffers {
		data := make([]int32, r.p.elements)
		memory := symmem.Host(data)
		if b < r.p.foreign {
			buffer, err := pool.Alloc(int64(r.p.elements) * 4)
			if err != nil {
				return err
			}
			if data, err = symmem.View[int32](buffer); err != nil {
				return err
			}
			data, memory = data[:r.p.elements], buffer.Memory()
			if memory, err = memory.Slice(0, int64(r.p.elements)*4); err != nil {
				return err
			}
		}
		copy(data, initial(r.seed, r.rt.Rank(), b, r.p.elements))
		r.data, r.memory = append(r.data, data), append(r.memory, memory)
	}
	if r.seed%2 == 0 {
		return nil
	}
	for _, g := range r.groups {
		if g == nil || g.Size() < 2 {
			continue
		}
		if err := pool.Register(r.ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// capture makes the graphs, with the mistake if it is in one of them.
func (r *performer) capture() error {
	for g, body := range r.p.graphs {
		s := r.streams[r.p.captured[g]]
		if err := s.BeginCapture(); err != nil {
			return err
		}
		at := &r.p.ops[r.m.at]
		for n := range body {
			errs := r.errs() && at.kind == launchGraph && at.graph == g && n == r.m.body
			if err := r.work(&body[n], s, errs); err != nil {
				return err
			}
		}
		graph, err := s.EndCapture()
		if err != nil {
			return err
		}
		r.graphs = append(r.graphs, graph)
	}
	return nil
}

func (r *performer) meet() error {
	if err := r.rt.World().Barrier(r.ctx, nil); err != nil {
		return err
	}
	return r.rt.DefaultStream().Synchronize(r.ctx)
}

// errs reports whether this rank makes a call that differs.
func (r *performer) errs() bool {
	return r.rt.Rank() == r.m.rank && (r.m.kind == otherCount || r.m.kind == otherType)
}

// issue queues all ops and returns the place of the one that was refused, else their number. A
// program that is told of an error goes no further.
func (r *performer) issue(report *erringReport) int {
	for i := range r.p.ops {
		o := &r.p.ops[i]
		r.disturb(o.stream)
		if r.m.kind != none && r.rt.Rank() == r.m.rank && i == r.m.at && r.err(o) {
			continue
		}
		if err := r.queue(i, o); err != nil {
			report.Errors = append(report.Errors, fmt.Sprintf("launching op %d: %v", i, err))
			return i
		}
	}
	if r.m.kind == killedSoon && r.rt.Rank() == r.m.rank {
		select {} // until it is killed
	}
	return len(r.p.ops)
}

// err makes a mistake, and reports whether it was instead of the op.
func (r *performer) err(o *op) (instead bool) {
	switch r.m.kind {
	case killed:
		die()
	case killedSoon:
		soon := time.Duration(r.noise.IntN(int(5 * time.Millisecond)))
		go func() {
			<-time.After(soon)
			die()
		}()
	case aborts:
		r.groups[r.p.body(o)[r.m.body].group].Abort()
		return true
	case skips:
		return true
	default:
	}
	return false
}

// die is the sudden end of this process.
func die() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// disturb now and then holds up this rank's program or one of its streams, for some time that no
// other rank has.
func (r *performer) disturb(stream int) {
	if r.noise.IntN(8) == 0 {
		<-time.After(time.Duration(r.noise.IntN(int(time.Millisecond))))
	}
	if r.noise.IntN(8) == 0 {
		pause := time.Duration(r.noise.IntN(int(3 * time.Millisecond)))
		// A stream that takes no work says so to the next op, too.
		_ = r.streams[stream].Host(func() { <-time.After(pause) })
	}
}

// queue queues one op.
func (r *performer) queue(i int, o *op) error {
	s := r.streams[o.stream]
	switch o.kind {
	case record:
		return s.Record(r.events[o.event])
	case wait:
		return s.Wait(r.events[o.event])
	case launchGraph:
		return r.graphs[o.graph].Launch(s)
	default:
		return r.work(o, s, r.errs() && i == r.m.at)
	}
}

// work queues a collective or a copy; errs says that it is to differ.
func (r *performer) work(o *op, s *symmem.Stream, errs bool) error {
	if !r.p.member(r.rt.Rank(), o) {
		return nil
	}
	send, recv := r.memory[o.send], r.memory[o.recv]
	if o.kind == cp {
		return s.Copy(recv, send)
	}
	n, t := int64(o.count), symmem.Int32
	if errs && r.m.kind == otherCount {
		n--
	} else if errs {
		t = symmem.Float32
	}
	g := r.groups[o.group]
	switch o.kind {
	case allReduce:
		return g.AllReduce(r.ctx, send, recv, n, t, o.reduce, s)
	case allGather:
		return g.AllGather(r.ctx, send, recv, n, t, s)
	case reduceScatter:
		return g.ReduceScatter(r.ctx, send, recv, n, t, o.reduce, s)
	case broadcast:
		return g.Broadcast(r.ctx, send, recv, n, t, o.root, s)
	case reduce:
		return g.Reduce(r.ctx, send, recv, n, t, o.reduce, o.root, s)
	default:
		return g.AllToAll(r.ctx, send, recv, n, t, s)
	}
}

// synchronize waits for all streams, and for the events that were recorded, in any order, and
// returns what they say.
func (r *performer) synchronize(
	stopped int, report *erringReport,
) (onStream, onEvent map[int]error) {
	onStream, onEvent = map[int]error{}, map[int]error{}
	for _, i := range r.noise.Perm(streams + len(r.events)) {
		e := i - streams
		if e < 0 {
			onStream[i] = r.streams[i].Synchronize(r.ctx)
			report.note("stream", i, onStream[i])
		} else if r.wasRecorded(e, stopped) {
			onEvent[e] = r.events[e].Synchronize(r.ctx)
			report.note("event", e, onEvent[e])
		}
	}
	return onStream, onEvent
}

func (r *erringReport) note(what string, i int, err error) {
	if err != nil {
		r.Errors = append(r.Errors, fmt.Sprintf("%s %d: %v", what, i, err))
	}
}

// wasRecorded reports whether an event was recorded before the rank stopped.
func (r *performer) wasRecorded(event, stopped int) bool {
	for i := range r.p.ops[:stopped] {
		if r.p.ops[i].kind == record && r.p.ops[i].event == event {
			return true
		}
	}
	return false
}

// groupEnds reports whether a group is told that it has failed, until the context ends.
func (r *performer) groupEnds(ctx context.Context, group int) bool {
	select {
	case <-r.groups[group].Ended():
		return r.groups[group].Err() != nil
	case <-ctx.Done():
		return false
	}
}
