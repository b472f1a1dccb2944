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

const recoveriesTimeout = 20 * time.Second

// recoveries describes programs in which a group fails and the ranks continue in another group.
var recoveries = kind{
	programsPerWorld: 20, timeLimit: 3 * time.Minute,
	drawWorld: (*task).recoveriesWorld,
	openPerformer: func(ctx context.Context, rt *symmem.Runtime, t *task) (performer, error) {
		p, err := newPlayer(ctx, rt, t)
		return &recoverer{player: p}, err
	},
	describe:     func(t *task, number int) fmt.Stringer { return t.recovery(number) },
	isRankKilled: func(t *task) bool { return t.recovery(t.lastProgram()).mistake.kind == killNow },
}

type recoveryWay int

const (
	bySplit recoveryWay = iota
	byJoin
	byWorld
	recoveryWays
)

func (w recoveryWay) String() string { return [...]string{"Split", "Join", "the world"}[w] }

// recovery holds two programs that run one after the other. A mistake in the first one makes its
// group fail. The second one, which has no mistake, runs in another group and uses the same
// pool.
type recovery struct {
	first, second *program
	mistake       mistake
	// outsider is the rank that is not in the first group, or -1 if all ranks are.
	outsider int
	way      recoveryWay
}

func (t *task) recoveriesWorld() (ranks int, o symmem.Options) {
	d := t.worldDraws()
	paths := []symmem.PathChoice{symmem.PathWindow, symmem.PathAuto, symmem.PathPlain}
	if t.GPU {
		// Avoid the window path, because NCCL's window kernels keep running after an abort until the
		// process exits.
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

// recovery draws a recovery. A rank may be killed only in the last recovery of a world.
func (t *task) recovery(number int) *recovery {
	ranks, _ := t.recoveriesWorld()
	d := newDraws(t.Seed, number)
	p := &recovery{way: recoveryWay(d.IntN(int(recoveryWays))), outsider: -1}
	if other := d.IntN(4 * ranks); ranks > 2 && other < ranks {
		p.outsider, p.way = other, recoveryWay(d.IntN(int(byWorld)))
	}

	l := newLayout(ranks)
	l.groups = append(l.groups, slices.DeleteFunc(slices.Clone(l.groups[0]), func(r int) bool {
		return r == p.outsider
	}))
	faults := []mistakeKind{abortNow, abortLater, cancelRegistration}
	if number == t.lastProgram() && ranks > 2 && d.IntN(2) == 0 {
		faults, p.way = []mistakeKind{killNow}, byJoin
	}

	for p.mistake.kind == noMistake {
		p.first = t.drawSteps(d, l, 1, 8+d.IntN(24))
		p.mistake = drawMistake(d, p.first, faults...)
	}

	l = newLayout(ranks)
	if p.mistake.kind == killNow {
		l.groups[0] = slices.Delete(l.groups[0], p.mistake.rank, p.mistake.rank+1)
	}

	p.second = t.drawSteps(d, l, 0, 4+d.IntN(16))
	p.second.ops = append(p.second.ops, op{kind: closeGraphsOp})
	p.second.shouldComparePlacement, p.second.keptBufferCount = true, 8
	return p
}

// drawSteps draws a program of n steps. It makes calls in one group, and allocates and frees
// buffers in between. If there are several machines, it draws no messages, because messages
// between machines are not supported.
func (t *task) drawSteps(d *rand.Rand, l layout, group, n int) *program {
	g := newGenerator(d, l)
	g.groups = []int{group}
	for range n {
		switch kind := d.IntN(10); {
		case len(g.live) < 2 || kind < 2:
			g.alloc(4 * (len(l.groups[group]) + d.IntN(1<<(10+d.IntN(10)))))
		case kind == 2:
			g.free()
		case kind == 3:
			g.drawGraph(true)
		case kind == 4:
			g.add(op{kind: []opKind{syncOp, closeGraphsOp}[d.IntN(2)], stream: d.IntN(streamCount)})
		case kind == 5 && t.Machines <= 1:
			g.ring()
		default:
			g.drawOp()
		}
	}

	return &g.p
}

// ring adds a message from each rank of the group to the next one.
func (g *generator) ring() {
	o := op{kind: sendOp, group: g.groups[0], stream: g.IntN(streamCount)}
	for index := range 2 {
		i := g.IntN(len(g.live) - index)
		g.live[index], g.live[index+i] = g.live[index+i], g.live[index]
	}

	o.recvStream, o.send, o.recv = o.stream, g.live[0], g.live[1]
	o.count = min(g.p.buffers[o.send].bytes, g.p.buffers[o.recv].bytes)
	members := g.p.groups[o.group]
	for i, from := range members {
		o.message = message{src: from, dst: members[(i+1)%len(members)]}
		g.addOrdered(o)
	}
}

func (r *recovery) String() string {
	return fmt.Sprintf("first group without rank %d, %v\n%vthen continued by %v\n%v",
		r.outsider, r.mistake, r.first, r.way, r.second)
}

// TestRecoveries runs programs in a group that fails at a random time. Each rank may detect the
// failure in a different op. The ranks then free their buffers, close the group, and continue in
// another group with the same pool. In that group, the placement of buffers must be the same on
// all ranks, results must be correct, and no call may return an error.
func TestRecoveries(t *testing.T) { recoveries.test(t, 200, task{Kind: "recoveries"}, nil) }

// TestRecoveriesOnAGPU runs the programs of TestRecoveries on GPUs without the window path.
func TestRecoveriesOnAGPU(t *testing.T) {
	recoveries.testOnAGPU(t, 40, task{Kind: "recoveries"})
}

type recoverer struct{ *player }

func (r *recoverer) run(number int) (reported, bad []string) {
	p := r.task.recovery(number)
	g, err := r.split(p)
	if err != nil {
		return nil, []string{fmt.Sprintf("splitting the world: %v", err)}
	}

	r.groups = []*symmem.Group{r.rt.World(), g}
	v, err := r.play(number, p.first, p.mistake)
	if err != nil {
		return nil, []string{err.Error()}
	}

	if err := r.finishFailed(g, v); err != nil {
		v.addFailure("%v", err)
	}

	if len(v.failures) > 0 {
		return v.reported, v.failures
	}

	after, err := r.proceed(number, g, p)
	if err != nil {
		return v.reported, []string{fmt.Sprintf("continuing by %v: %v", p.way, err)}
	}

	return v.reported, after
}

// split creates the group of the first program. On the outsider, it returns nil.
func (r *recoverer) split(p *recovery) (*symmem.Group, error) {
	if r.rt.Rank() == p.outsider {
		return nil, r.rt.World().SkipSplit(r.ctx)
	}

	return r.rt.World().Split(r.ctx, 0, 0)
}

// finishFailed waits until the group has failed, and then releases buffers and graphs in a
// random order. On the host, where a failure spreads to the work that follows, it sometimes also
// checks results before it frees the buffers.
func (r *recoverer) finishFailed(g *symmem.Group, v *verdict) error {
	if g != nil {
		if r.rt.Rank() == r.m.rank {
			g.Abort() // in case the mistake has not made the group fail
		} else if r.noise.IntN(4) > 0 {
			// Make a call, so that this rank detects the fault immediately rather than after up to
			// a second.
			_ = g.Barrier(r.ctx, r.streams[0])
		}

		select {
		case <-g.Ended():
		case <-time.After(recoveriesTimeout):
			return errors.New("the group did not fail")
		}

		if g.Err() == nil {
			return errors.New("the group ended without an error")
		}
	}

	if r.noise.IntN(2) == 0 {
		r.free()
	} else if !r.task.GPU {
		v.check()
	}

	for _, s := range r.streams {
		_ = s.Synchronize(r.ctx) // returns the fault again
	}

	for _, graph := range r.graphs {
		if graph == nil {
			continue
		}

		if r.noise.IntN(3) == 0 {
			r.keptGraphs = append(r.keptGraphs, graph)
		} else {
			_ = graph.Close()
		}
	}

	r.free()
	return nil
}

func (r *recoverer) free() {
	for _, b := range slices.Sorted(maps.Keys(r.buffers)) {
		_ = r.buffers[b].Free() // fails if a use cannot be recorded because a stream has failed
	}

	clear(r.buffers)
}

func (r *recoverer) proceed(
	number int, failed *symmem.Group, p *recovery,
) (bad []string, err error) {
	closeFirst := r.noise.IntN(2) == 0
	if failed != nil && closeFirst {
		_ = failed.Close() // returns the fault again
	}

	next, err := r.next(number, p)
	if err != nil {
		return nil, err
	}

	if failed != nil && !closeFirst {
		_ = failed.Close()
	}

	r.groups = []*symmem.Group{next}
	v, err := r.play(number, p.second, mistake{})
	if err != nil {
		return nil, err
	}

	v.check()
	v.finish()
	if len(v.failures) > 0 {
		return v.failures, nil
	}

	if err := next.Check(r.ctx); err != nil || next == r.rt.World() {
		return nil, err
	}

	return nil, next.Close()
}

func (r *recoverer) next(number int, p *recovery) (*symmem.Group, error) {
	switch p.way {
	case byWorld:
		return r.rt.World(), r.pool.Register(r.ctx, r.rt.World())
	case byJoin:
		return r.rt.Join(r.ctx, fmt.Sprintf("recovery %d", number), p.second.groups[0])
	default:
		return r.rt.World().Split(r.ctx, 0, 0)
	}
}
