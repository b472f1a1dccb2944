package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"symmem"
)

// recoverer is a rank whose groups fail.
type recoverer struct {
	ctx     context.Context
	rt      *symmem.Runtime
	pool    *symmem.Pool
	streams [streams]*symmem.Stream
	// base are buffers that live across programs, the same on all ranks; buffers and graphs are
	// those of the program, and late are graphs that are closed after the recovery, on each rank
	// other ones.
	base, buffers []symmem.Buffer
	graphs, late  []*symmem.Graph
	// noise draws what this rank alone does.
	noise *rand.Rand
}

func openRecoverer(ctx context.Context, o symmem.Options) (*recoverer, error) {
	rt, err := symmem.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &recoverer{ctx: ctx, rt: rt}
	for i := range r.streams {
		if r.streams[i], err = rt.NewStream(); err != nil {
			return nil, err
		}
	}
	r.pool, err = rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 2 << 20})
	return r, err
}

func (r *recoverer) close() error {
	var errs []error
	for _, b := range r.base {
		errs = append(errs, b.Free())
	}
	return errors.Join(append(errs, r.rt.Close())...)
}

// run runs a program, and returns what is wrong.
func (r *recoverer) run(number int, p *recovery) error {
	g, err := r.split(p)
	if err != nil {
		return fmt.Errorf("making a group: %w", err)
	}
	if g == nil {
		err = r.lookOn(p)
	} else {
		err = r.untilItFails(g, p)
	}
	if err != nil {
		return err
	}
	if g != nil && r.noise.IntN(2) == 0 {
		_ = g.Close() // with the fault, which is known
	}
	next, err := r.goOn(number, p)
	if err != nil {
		return fmt.Errorf("going on by %v: %w", p.way, err)
	}
	if g != nil {
		_ = g.Close()
	}
	if err := r.afterwards(next, p.after); err != nil {
		return fmt.Errorf("after the recovery: %w", err)
	}
	if next == r.rt.World() {
		return nil
	}
	return next.Close()
}

// untilItFails takes the steps of a program until a call of the group is refused, and gives up what
// it has made.
func (r *recoverer) untilItFails(g *symmem.Group, p *recovery) error {
	for i := range p.steps {
		if i == p.at && r.rt.Rank() == p.victim && r.fail(g, p) {
			break
		}
		if r.noise.IntN(4) == 0 {
			<-time.After(time.Duration(r.noise.IntN(int(300 * time.Microsecond))))
		}
		if r.take(g, &p.steps[i]) != nil {
			break
		}
	}
	if r.rt.Rank() == p.victim {
		if p.fault == died {
			die()
		}
		g.Abort() // a call was refused before
	} else if r.noise.IntN(4) > 0 {
		// A rank that is in no call of the group hears of the fault within a second, others at once.
		_ = g.Barrier(r.ctx, r.streams[0])
	}
	select {
	case <-g.Ended():
	case <-time.After(recoveriesTimeout):
		return errors.New("the group has not failed")
	}
	if g.Err() == nil {
		return errors.New("the group has ended without an error")
	}
	r.unwind()
	return nil
}

// split makes the group of a program, which is nil for a rank that is not in it.
func (r *recoverer) split(p *recovery) (*symmem.Group, error) {
	if r.rt.Rank() == p.outsider {
		return nil, r.rt.World().SkipSplit(r.ctx)
	}
	return r.rt.World().Split(r.ctx, 0, 0)
}

// lookOn takes the steps of a program on a rank that is not in its group.
func (r *recoverer) lookOn(p *recovery) error {
	for i := range p.steps {
		if err := r.note(&p.steps[i]); err != nil {
			return fmt.Errorf("looking on, step %d: %w", i, err)
		}
	}
	r.unwind()
	return nil
}

// note takes a step, and notes what a call of the others uses.
func (r *recoverer) note(s *recoveryStep) error {
	on := r.streams[s.stream]
	if s.kind != addUp && s.kind != captureCalls && s.kind != sendAlong || len(r.buffers) == 0 {
		return r.take(nil, s)
	}
	i := s.which % len(r.buffers)
	switch s.kind {
	case captureCalls:
		if err := on.BeginCapture(); err != nil {
			return err
		}
		err := r.buffers[i].UseOn(on)
		graph, ended := on.EndCapture()
		if ended == nil {
			r.graphs = append(r.graphs, graph)
		}
		return errors.Join(err, ended)
	case sendAlong:
		return errors.Join(r.buffers[i].UseOn(on), r.buffers[(i+1)%len(r.buffers)].UseOn(on))
	default:
		return r.buffers[i].UseOn(on)
	}
}

// fail makes the group fail, and reports whether the program stops here.
func (r *recoverer) fail(g *symmem.Group, p *recovery) bool {
	switch p.fault {
	case died:
		die()
	case abortedSoon:
		soon := time.Duration(r.noise.IntN(int(2 * time.Millisecond)))
		go func() {
			<-time.After(soon)
			g.Abort()
		}()
		return false
	case cancelled:
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		b, err := r.pool.Alloc(1 << (20 + r.noise.IntN(3)))
		if err == nil {
			r.buffers = append(r.buffers, b)
			err = r.pool.Register(ctx, g)
		}
		if err == nil {
			g.Abort() // there was nothing to register
		}
	default:
		g.Abort()
	}
	return true
}

// take takes a step, and returns why it was refused.
func (r *recoverer) take(g *symmem.Group, s *recoveryStep) error {
	on := r.streams[s.stream]
	if s.kind == takeBuffer || len(r.buffers) == 0 {
		b, err := r.pool.AllocOn(on, s.bytes)
		if err == nil {
			r.buffers = append(r.buffers, b)
		}
		return err
	}
	i := s.which % len(r.buffers)
	m := r.buffers[i].Memory()
	switch s.kind {
	case dropBuffer:
		b := r.buffers[i]
		r.buffers = slices.Delete(r.buffers, i, i+1)
		return b.Free()
	case copyOver:
		return on.Fill(m, byte(s.which))
	case captureCalls:
		return r.capture(g, m, on)
	case launchCaptured:
		if len(r.graphs) == 0 {
			return nil
		}
		return r.graphs[s.which%len(r.graphs)].Launch(on)
	case waitForStream:
		return on.Synchronize(r.ctx)
	case sendAlong:
		return r.send(g, m, r.buffers[(i+1)%len(r.buffers)].Memory(), on)
	default:
		return g.AllReduce(r.ctx, m, m, m.Bytes()/4, symmem.Int32, symmem.Sum, on)
	}
}

// send passes a buffer on to the next rank, and receives into another one from the one before.
func (r *recoverer) send(g *symmem.Group, from, to symmem.Memory, on *symmem.Stream) error {
	n, me := g.Size(), g.Rank()
	if from == to {
		return nil
	}
	count := min(from.Bytes(), to.Bytes()) / 4
	err := g.Send(r.ctx, from, count, symmem.Int32, (me+1)%n, on)
	if err == nil {
		err = g.Recv(r.ctx, to, count, symmem.Int32, (me+n-1)%n, on)
	}
	return err
}

// capture captures two calls. The graph is kept also where the second one is refused.
func (r *recoverer) capture(g *symmem.Group, m symmem.Memory, on *symmem.Stream) error {
	if err := on.BeginCapture(); err != nil {
		return err
	}
	var errs []error
	for range 2 {
		errs = append(errs, g.AllReduce(r.ctx, m, m, m.Bytes()/4, symmem.Int32, symmem.Sum, on))
	}
	graph, err := on.EndCapture()
	if err == nil {
		r.graphs = append(r.graphs, graph)
	}
	return errors.Join(append(errs, err)...)
}

// unwind gives up what a program has made, in an order that each rank draws.
func (r *recoverer) unwind() {
	free := func() {
		for _, b := range r.buffers {
			_ = b.Free() // where a stream has failed a use cannot be marked
		}
		r.buffers = nil
	}
	if r.noise.IntN(2) == 0 {
		free()
	}
	for _, s := range r.streams {
		_ = s.Synchronize(r.ctx) // with the fault
	}
	for _, g := range r.graphs {
		if r.noise.IntN(3) == 0 {
			r.late = append(r.late, g)
		} else {
			_ = g.Close()
		}
	}
	r.graphs = nil
	free()
}

// goOn returns the group with which the ranks go on.
func (r *recoverer) goOn(number int, p *recovery) (*symmem.Group, error) {
	switch p.way {
	case byWorld:
		return r.rt.World(), r.pool.Register(r.ctx, r.rt.World())
	case byJoin:
		return r.rt.Join(r.ctx, fmt.Sprintf("recovery %d", number), p.survivors(r.rt.Size()))
	default:
		return r.rt.World().Split(r.ctx, 0, 0)
	}
}

// afterwards takes steps of which all must be right. Between them all ranks close their late
// graphs: what these hold on all ranks comes back there.
func (r *recoverer) afterwards(g *symmem.Group, steps []recoveryStep) error {
	for i := range steps {
		if steps[i].which%4 == 0 {
			r.closeLate()
		}
		if err := r.takeRightly(g, &steps[i]); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	r.closeLate()
	for _, s := range r.streams {
		if err := s.Synchronize(r.ctx); err != nil {
			return err
		}
	}
	r.base = append(r.base, r.buffers...)
	r.buffers = nil
	for len(r.base) > 8 {
		if err := r.base[0].Free(); err != nil {
			return err
		}
		r.base = r.base[1:]
	}
	return g.Check(r.ctx)
}

func (r *recoverer) closeLate() {
	for _, g := range r.late {
		_ = g.Close() // what it says was said by the streams
	}
	r.late = nil
}

// takeRightly takes a step of a group that is good.
func (r *recoverer) takeRightly(g *symmem.Group, s *recoveryStep) error {
	on := r.streams[s.stream]
	if s.kind == takeBuffer || len(r.buffers) == 0 {
		b, err := r.pool.AllocOn(on, s.bytes)
		if err != nil {
			return err
		}
		r.buffers = append(r.buffers, b)
		return g.Agree(r.ctx, "place", int64(b.Segment())<<40|b.Offset())
	}
	i := s.which % len(r.buffers)
	switch s.kind {
	case dropBuffer, waitForStream:
		return r.take(g, s)
	case captureCalls:
		if err := r.sum(g, r.buffers[i], on, false); err != nil {
			return err
		}
		return r.sum(g, r.buffers[i], on, true)
	default:
		return r.sum(g, r.buffers[i], on, false)
	}
}

// sum adds up numbers in a buffer, and compares the sum.
func (r *recoverer) sum(g *symmem.Group, b symmem.Buffer, on *symmem.Stream, captured bool) error {
	m := b.Memory()
	in, out := make([]int32, m.Bytes()/4), make([]int32, m.Bytes()/4)
	for i := range in {
		in[i] = int32(1000*(r.rt.Rank()+1) + i%97)
	}
	call := func() error {
		return g.AllReduce(r.ctx, m, m, int64(len(in)), symmem.Int32, symmem.Sum, on)
	}
	if captured {
		if err := on.BeginCapture(); err != nil {
			return err
		}
		err := call()
		graph, ended := on.EndCapture()
		if err := errors.Join(err, ended); err != nil {
			return err
		}
		defer graph.Close()
		call = func() error { return graph.Launch(on) }
	}
	for _, step := range []func() error{
		func() error { return on.Copy(m, symmem.Host(in)) },
		call,
		func() error { return on.Copy(symmem.Host(out), m) },
		func() error { return on.Synchronize(r.ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	base := int32(0)
	for _, member := range g.Ranks() {
		base += int32(1000 * (member + 1))
	}
	for i := range out {
		if want := base + int32(g.Size()*(i%97)); out[i] != want {
			return fmt.Errorf("wrong: element %d is %d, want %d", i, out[i], want)
		}
	}
	return nil
}
