package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"symmem"
	programs "symmem/internal/program"
)

type player struct {
	ctx    context.Context
	rt     *symmem.Runtime
	task   *task
	draw   func(*task, int) (*program, mistake)
	pool   *symmem.Pool
	groups []*symmem.Group // in the order of layout.groups; nil for groups without this rank
	// library stands for another CUDA library in programs of the kind "graphs". It is nil in
	// others.
	library *programs.Library
	streams []*symmem.Stream
	// auxiliary is a further stream, on which buffers are initialized and results are read.
	auxiliary *symmem.Stream

	// The fields below belong to the current program.
	p      *program
	m      mistake
	seed   uint64
	events []*symmem.Event
	graphs []launchable
	// buffers holds the buffers that belong to the pool, by number. memory holds the memory of all
	// buffers, and is zero for freed ones.
	buffers map[int]symmem.Buffer
	memory  []symmem.Memory
	// free holds functions that free the other library's memory.
	free []func() error
	// noise is a random number generator for delays and orders that may differ between ranks.
	noise *rand.Rand
	// keptBuffers and keptGraphs hold the buffers and graphs that earlier programs have left open.
	keptBuffers []symmem.Buffer
	keptGraphs  []launchable

	mu sync.Mutex
	// sources holds, for each Recv from AnySource, the group rank whose message arrived, by op.
	sources map[int]int // guarded by mu
}

type launchable interface {
	Launch(*symmem.Stream) error
	Close() error
}

// openPlayer returns a function that creates a player for one rank. The player runs the programs
// that draw returns.
func openPlayer(
	draw func(*task, int) (*program, mistake),
) func(context.Context, *symmem.Runtime, *task) (performer, error) {
	return func(ctx context.Context, rt *symmem.Runtime, t *task) (performer, error) {
		r, err := newPlayer(ctx, rt, t)
		if err != nil {
			return nil, err
		}

		r.draw = draw
		p, _ := draw(t, t.First)
		r.groups = make([]*symmem.Group, len(p.groups))
		r.groups[0] = rt.World()
		for i, colors := range p.colors {
			color := colors[rt.Rank()]
			g, err := rt.World().Split(ctx, color, 0)
			if err != nil {
				return nil, err
			}

			r.groups[1+2*i+color] = g
		}

		return r, nil
	}
}

func newPlayer(ctx context.Context, rt *symmem.Runtime, t *task) (r *player, err error) {
	r = &player{ctx: ctx, rt: rt, task: t}
	n := streamCount
	if t.MaxBytes > 0 {
		if r.library, err = programs.NewLibrary(rt, libraryStreamCount); err != nil {
			return nil, err
		}

		r.streams, n = slices.Clone(r.library.Streams), maxStreams
	}

	for len(r.streams) < n {
		s, err := rt.NewStream()
		if err != nil {
			return nil, err
		}

		r.streams = append(r.streams, s)
	}

	if r.auxiliary, err = rt.NewStream(); err != nil {
		return nil, err
	}

	r.pool, err = rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 2 << 20})
	return r, err
}

// close frees the kept buffers and closes the Runtime. If the program had a mistake, the Runtime's
// error is ignored.
func (r *player) close() error {
	var errs []error
	for _, b := range r.keptBuffers {
		errs = append(errs, b.Free())
	}

	if err := r.rt.Close(); r.m.kind == noMistake {
		errs = append(errs, err)
	}

	if r.library != nil {
		errs = append(errs, r.library.Close())
	}

	return errors.Join(errs...)
}

func (r *player) run(number int) (reported, bad []string) {
	p, m := r.draw(r.task, number)
	v, err := r.play(number, p, m)
	if err != nil {
		return nil, []string{err.Error()}
	}

	v.check()
	if m.kind == noMistake {
		v.finish()
	}

	return v.reported, v.failures
}

func (r *player) play(number int, p *program, m mistake) (*verdict, error) {
	r.p, r.m = p, m
	r.seed = r.task.Seed<<20 + uint64(number)
	r.noise = newDraws(r.seed, r.rt.Rank())
	if err := r.prepare(); err != nil {
		return nil, fmt.Errorf("preparing: %w", err)
	}

	v := &verdict{player: r, model: newModel(r.seed, p, m), syncErrs: map[int]error{}}
	v.endIndex = r.queueAll(v)
	return v, nil
}

func (r *player) prepare() error {
	if r.library != nil {
		if err := r.rt.World().SetPath(r.ctx, r.p.path); err != nil {
			return err
		}
	}

	r.buffers, r.memory = map[int]symmem.Buffer{}, make([]symmem.Memory, len(r.p.buffers))
	r.mu.Lock()
	r.sources = map[int]int{}
	r.mu.Unlock()
	r.events = make([]*symmem.Event, r.p.events)
	var err error
	for i := range r.events {
		if r.events[i], err = r.rt.NewEvent(); err != nil {
			return err
		}
	}

	for b := range r.p.buffers {
		if r.p.buffers[b].allocatedByOp {
			continue
		}

		if err := r.makeBuffer(b, r.auxiliary); err != nil {
			return err
		}
	}

	if err := r.auxiliary.Synchronize(r.ctx); err != nil {
		return err
	}

	for _, g := range r.groups {
		if g == nil || g.Size() < 2 || !r.p.shouldRegisterPool {
			continue
		}

		if err := r.pool.Register(r.ctx, g); err != nil {
			return err
		}
	}

	r.graphs = make([]launchable, len(r.p.graphs))
	for g := range r.p.graphs {
		if r.p.graphs[g].capturedByOp {
			continue
		}

		if err := r.capture(g); err != nil {
			return err
		}
	}

	if r.p.shouldComparePlacement {
		return nil // skip the barrier, which would fail if a rank has died
	}

	if err := r.rt.World().Barrier(r.ctx, nil); err != nil {
		return err
	}

	return r.rt.DefaultStream().Synchronize(r.ctx)
}

func (r *player) makeBuffer(number int, stream *symmem.Stream) error {
	b := r.p.buffers[number]
	var m symmem.Memory
	switch {
	case b.isForeign && r.library != nil:
		memory, free, err := r.library.Memory(int64(b.bytes))
		if err != nil {
			return err
		}

		m, r.free = memory, append(r.free, free)
	case b.isForeign:
		m = symmem.Host(make([]byte, b.bytes))
	default:
		buffer, err := r.pool.AllocOn(stream, int64(b.bytes))
		if err != nil {
			return err
		}

		r.buffers[number] = buffer
		// The history of a pool must be the same on all ranks. If the ranks queue ops in different
		// orders, record all possible uses in advance, so that the history does not depend on the
		// order.
		for _, s := range r.streams {
			if r.p.orders == nil {
				break
			}

			if err := buffer.UseOn(s); err != nil {
				return err
			}
		}

		if m, err = buffer.Memory().Slice(0, int64(b.bytes)); err != nil {
			return err
		}
	}

	r.memory[number] = m
	return stream.Copy(m, symmem.Host(initialContents(r.seed, r.rt.Rank(), number).part(0, b.bytes)))
}

// release closes the program's graphs, and frees all buffers except the last p.keep ones.
func (r *player) release() error {
	var errs []error
	for _, g := range r.graphs {
		errs = append(errs, g.Close())
	}

	for _, free := range r.free {
		errs = append(errs, free())
	}

	for _, b := range slices.Sorted(maps.Keys(r.buffers)) {
		r.keptBuffers = append(r.keptBuffers, r.buffers[b])
	}

	for len(r.keptBuffers) > r.p.keptBufferCount {
		errs = append(errs, r.keptBuffers[0].Free())
		r.keptBuffers = r.keptBuffers[1:]
	}

	r.graphs, r.buffers, r.free = nil, nil, nil
	return errors.Join(errs...)
}

// capture captures a graph. It keeps the graph even if a call returned an error during the
// capture.
func (r *player) capture(number int) error {
	g := &r.p.graphs[number]
	if g.branches > 0 {
		graph, err := r.library.Capture(r.library.Streams[:g.branches], func() error {
			return r.record(number, nil)
		})
		if err == nil {
			r.graphs[number] = graph
		}

		return err
	}

	s := r.streams[g.stream]
	if err := s.BeginCapture(); err != nil {
		return err
	}

	recordErr := r.record(number, s)
	graph, err := s.EndCapture()
	if err == nil {
		r.graphs[number] = graph
	}

	return errors.Join(recordErr, err)
}

// record queues the ops of a graph on stream s. If s is nil, it queues each op on the stream of
// its branch.
func (r *player) record(number int, s *symmem.Stream) error {
	wrongOp, body := &r.p.ops[r.m.opIndex], r.p.graphs[number].body
	for n := range body {
		stream := s
		if stream == nil {
			stream = r.streams[body[n].stream]
		}

		differs := r.isMakingWrongCall() && n == r.m.bodyIndex &&
			wrongOp.kind == launchOp && wrongOp.graph == number
		if err := r.work(&body[n], stream, differs); err != nil {
			return err
		}
	}

	return nil
}

func (r *player) isMakingWrongCall() bool {
	return r.rt.Rank() == r.m.rank && (r.m.kind == wrongCount || r.m.kind == wrongType)
}

// queueAll queues the program's ops until one returns an error. It returns the index of that op,
// or the number of ops if all succeeded.
func (r *player) queueAll(v *verdict) int {
	for _, i := range r.p.order(r.rt.Rank()) {
		o := &r.p.ops[i]
		r.disturb(o.streamOf(r.rt.Rank()))
		if r.m.kind != noMistake && r.rt.Rank() == r.m.rank && i == r.m.opIndex && r.deviate(o) {
			continue
		}

		if err := r.queue(i, o); err != nil {
			if o.kind == syncOp {
				v.syncErrs[o.stream] = err
			}

			v.reported = append(v.reported, fmt.Sprintf("launching op %d: %v", i, err))
			return i
		}
	}

	if r.m.kind == killLater && r.rt.Rank() == r.m.rank {
		select {} // wait to be killed
	}

	return len(r.p.ops)
}

func (r *player) deviate(o *op) (replaced bool) {
	group := r.groups[r.p.body(o)[r.m.bodyIndex].group]
	switch r.m.kind {
	case killNow:
		die()
	case killLater:
		r.callLater(die)
	case abortLater:
		r.callLater(group.Abort)
	case abortNow:
		group.Abort()
		return true
	case cancelRegistration:
		r.cancel(group)
		return true
	case skipCall:
		return true
	default:
	}

	return false
}

func (r *player) callLater(call func()) {
	delay := time.Duration(r.noise.IntN(int(5 * time.Millisecond)))
	go func() {
		<-time.After(delay)
		call()
	}()
}

// cancel calls Register with a canceled context, after allocating a buffer that only this rank has.
// It then aborts the group, like a program that cannot continue.
func (r *player) cancel(g *symmem.Group) {
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	b, err := r.pool.Alloc(1 << (20 + r.noise.IntN(3)))
	if err == nil {
		r.buffers[len(r.p.buffers)] = b
		_ = r.pool.Register(ctx, g)
	}

	g.Abort()
}

func die() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// disturb sometimes delays this rank or the work on a stream, for a random time.
func (r *player) disturb(stream int) {
	if r.noise.IntN(8) == 0 {
		<-time.After(time.Duration(r.noise.IntN(int(time.Millisecond))))
	}

	if r.noise.IntN(8) == 0 {
		pause := time.Duration(r.noise.IntN(int(3 * time.Millisecond)))
		// If Host fails, the stream's next op returns the error.
		_ = r.streams[stream].Host(func() { <-time.After(pause) })
	}
}
