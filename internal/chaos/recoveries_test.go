package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem"
)

// recoveriesTimeout is Options.Timeout.
const recoveriesTimeout = 20 * time.Second

// recoveries describes programs in which a group fails and the ranks continue with another one.
var recoveries = kind{
	each: 20, limit: 3 * time.Minute,
	world: (*task).recoveringWorld,
	open: func(ctx context.Context, rt *symmem.Runtime, t *task) (performer, error) {
		p, err := newPlayer(ctx, rt, t)
		return &recoverer{player: p}, err
	},
	show:  func(t *task, number int) fmt.Stringer { return t.recovery(number) },
	kills: func(t *task) bool { return t.recovery(t.last()).mistake.kind == killed },
}

// recoveryWay selects how ranks continue after a failure.
type recoveryWay int

const (
	bySplit recoveryWay = iota
	byJoin
	byWorld
	recoveryWays
)

func (w recoveryWay) String() string { return [...]string{"Split", "Join", "the world"}[w] }

// recovery holds a program with a mistake that ends its group, and a second program of another
// group over the same pool, whose results must be right.
type recovery struct {
	before, after *program
	mistake       mistake
	// outsider is a rank outside the first group, or -1.
	outsider int
	way      recoveryWay
}

func (t *task) recoveringWorld() (ranks int, o symmem.Options) {
	d := t.worldDraws()
	paths := []symmem.PathChoice{symmem.PathWindow, symmem.PathAuto, symmem.PathPlain}
	if t.GPU {
		// NCCL's window kernels that were aborted run until their process ends.
		paths = []symmem.PathChoice{symmem.PathDirect, symmem.PathPlain}
	}
	return 2 + d.IntN(3), symmem.Options{
		Timeout: recoveriesTimeout, CheckInterval: -1,
		Check: []symmem.CheckLevel{
			symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery, symmem.CheckEvery,
		}[d.IntN(4)],
		Path: paths[d.IntN(len(paths))],
	}
}

// recovery draws a program. A rank may die in the last one of a world.
func (t *task) recovery(number int) *recovery {
	ranks, _ := t.recoveringWorld()
	d := newDraws(t.Seed, number)
	p := &recovery{way: recoveryWay(d.IntN(int(recoveryWays))), outsider: -1}
	if other := d.IntN(4 * ranks); ranks > 2 && other < ranks {
		p.outsider, p.way = other, recoveryWay(d.IntN(int(byWorld)))
	}
	l := newLayout(ranks)
	l.groups = append(l.groups, slices.DeleteFunc(slices.Clone(l.groups[0]), func(r int) bool {
		return r == p.outsider
	}))
	faults := []mistakeKind{aborts, abortsSoon, cancels}
	if number == t.last() && ranks > 2 && d.IntN(2) == 0 {
		faults, p.way = []mistakeKind{killed}, byJoin
	}
	for p.mistake.kind == none {
		p.before = drawSteps(d, l, 1, 8+d.IntN(24))
		p.mistake = drawMistake(d, p.before, faults...)
	}
	l = newLayout(ranks)
	if p.mistake.kind == killed {
		l.groups[0] = slices.Delete(l.groups[0], p.mistake.rank, p.mistake.rank+1)
	}
	p.after = drawSteps(d, l, 0, 4+d.IntN(16))
	p.after.ops = append(p.after.ops, op{kind: closeLate})
	p.after.places, p.after.keep = true, 8
	return p
}

// drawSteps draws a program of one group that allocates and frees buffers between its calls.
func drawSteps(d *rand.Rand, l layout, group, n int) *program {
	g := newGenerator(d, l)
	g.groups = []int{group}
	for range n {
		switch kind := d.IntN(10); {
		case len(g.live) < 2 || kind < 2:
			g.take(4 * (len(l.groups[group]) + d.IntN(1<<(10+d.IntN(10)))))
		case kind == 2:
			g.drop()
		case kind == 3:
			g.drawGraph(true)
		case kind == 4:
			g.add(op{kind: []opKind{await, closeLate}[d.IntN(2)], stream: d.IntN(streams)})
		case kind == 5:
			g.ring()
		default:
			g.drawOp()
		}
	}
	return &g.p
}

// ring adds a message from each rank of the group to the next one.
func (g *generator) ring() {
	o := op{kind: send, group: g.groups[0], stream: g.IntN(streams)}
	for at := range 2 {
		i := g.IntN(len(g.live) - at)
		g.live[at], g.live[at+i] = g.live[at+i], g.live[at]
	}
	o.on, o.send, o.recv = o.stream, g.live[0], g.live[1]
	o.count = min(g.p.buffers[o.send].bytes, g.p.buffers[o.recv].bytes)
	members := g.p.groups[o.group]
	for i, from := range members {
		o.message = message{from: from, to: members[(i+1)%len(members)]}
		g.put(o)
	}
}

func (p *recovery) String() string {
	return fmt.Sprintf("without rank %d, %v\n%vthen by %v\n%v", p.outsider, p.mistake, p.before, p.way,
		p.after)
}

// TestRecoveries runs programs whose ranks allocate, free, capture, and call on several streams in
// a group that fails at any moment, at a different op on each rank. They free what they have
// allocated, close the group, and continue with another one over the same pool: buffers must then
// have the same places on all ranks, results must be right, and nothing may be refused.
func TestRecoveries(t *testing.T) { recoveries.test(t, 200, task{Kind: "recoveries"}, nil) }

// TestRecoveriesOnAGPU runs such programs on the GPU backend, without the window path.
func TestRecoveriesOnAGPU(t *testing.T) {
	recoveries.testOnAGPU(t, 40, task{Kind: "recoveries"})
}

// recoverer runs recoveries as one rank.
type recoverer struct{ *player }

func (r *recoverer) run(number int) (reported, bad []string) {
	p := r.task.recovery(number)
	g, err := r.split(p)
	if err != nil {
		return nil, []string{fmt.Sprintf("making a group: %v", err)}
	}
	r.groups = []*symmem.Group{r.rt.World(), g}
	v, err := r.play(number, p.before, p.mistake)
	if err != nil {
		return nil, []string{err.Error()}
	}
	if err := r.end(g, v); err != nil {
		v.add("%v", err)
	}
	if len(v.bad) > 0 {
		return v.reported, v.bad
	}
	after, err := r.proceed(number, g, p)
	if err != nil {
		return v.reported, []string{fmt.Sprintf("continuing by %v: %v", p.way, err)}
	}
	return v.reported, after
}

// split makes the first group, which is nil on a rank outside it.
func (r *recoverer) split(p *recovery) (*symmem.Group, error) {
	if r.rt.Rank() == p.outsider {
		return nil, r.rt.World().SkipSplit(r.ctx)
	}
	return r.rt.World().Split(r.ctx, 0, 0)
}

// end waits for the end of the group, and frees buffers and graphs in an order that each rank
// draws. It compares the results on the host, where a failure flows forward, unless buffers go
// first.
func (r *recoverer) end(g *symmem.Group, v *verdict) error {
	if g != nil {
		if r.rt.Rank() == r.m.rank {
			g.Abort() // in case it has not failed
		} else if r.noise.IntN(4) > 0 {
			// A rank in a call of the group notices the fault at once, others within a second.
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
	}
	if r.noise.IntN(2) == 0 {
		r.free()
	} else if !r.task.GPU {
		v.judge()
	}
	for _, s := range r.streams {
		_ = s.Synchronize(r.ctx) // returns the fault
	}
	for _, graph := range r.graphs {
		if graph == nil {
			continue
		}
		if r.noise.IntN(3) == 0 {
			r.late = append(r.late, graph)
		} else {
			_ = graph.Close()
		}
	}
	r.free()
	return nil
}

// free frees the buffers of a program.
func (r *recoverer) free() {
	for _, b := range slices.Sorted(maps.Keys(r.buffers)) {
		_ = r.buffers[b].Free() // fails if a use cannot be recorded on a failed stream
	}
	clear(r.buffers)
}

// proceed runs the second program.
func (r *recoverer) proceed(
	number int, failed *symmem.Group, p *recovery,
) (bad []string, err error) {
	early := r.noise.IntN(2) == 0
	if failed != nil && early {
		_ = failed.Close() // returns the fault
	}
	next, err := r.next(number, p)
	if err != nil {
		return nil, err
	}
	if failed != nil && !early {
		_ = failed.Close()
	}
	r.groups = []*symmem.Group{next}
	v, err := r.play(number, p.after, mistake{})
	if err != nil {
		return nil, err
	}
	v.judge()
	v.finish()
	if len(v.bad) > 0 {
		return v.bad, nil
	}
	if err := next.Check(r.ctx); err != nil || next == r.rt.World() {
		return nil, err
	}
	return nil, next.Close()
}

// next returns the second group.
func (r *recoverer) next(number int, p *recovery) (*symmem.Group, error) {
	switch p.way {
	case byWorld:
		return r.rt.World(), r.pool.Register(r.ctx, r.rt.World())
	case byJoin:
		return r.rt.Join(r.ctx, fmt.Sprintf("recovery %d", number), p.after.groups[0])
	default:
		return r.rt.World().Split(r.ctx, 0, 0)
	}
}
