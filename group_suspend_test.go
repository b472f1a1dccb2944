package symmem_test

import (
	"errors"
	"strings"
	"testing"

	"symmem"
)

// A program can suspend a group that it does not use for a while: the group releases memory.
// Until all ranks resume the group, its collectives fail with ErrSuspended. A pool can be
// suspended, too. It then releases the memory of its buffers.

// suspendGroup suspends g. All ranks must call it. It returns how much memory g has released on
// this rank.
func suspendGroup(r *rank, g *symmem.Group) symmem.Suspension {
	r.t.Helper()
	released, err := g.Suspend(r.ctx)
	r.ok(err)
	if !g.Suspended() {
		r.failf("Suspended() = false after Suspend, want true")
	}

	return released
}

// resumeGroup ends the suspension of g. All ranks must call it.
func resumeGroup(r *rank, g *symmem.Group) {
	r.t.Helper()
	r.ok(g.Resume(r.ctx))
	if g.Suspended() {
		r.failf("Suspended() = true after Resume, want false")
	}
}

// TestSuspendedGroupReplaysGraphs captures two graphs and then suspends and resumes the group many
// times, and every other time also the pool. After each time, the graphs must still compute the
// right sums.
func TestSuspendedGroupReplaysGraphs(t *testing.T) {
	const cycles = 100
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w := r.World()
		p := r.pool()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(w, b)
		sumGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		})
		const messageCount = 10 // elements
		peer := 1 - r.Rank()
		messageGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.Send(r.ctx, m, messageCount, symmem.Float32, peer, s))
			r.ok(w.Recv(r.ctx, m, messageCount, symmem.Float32, peer, s))
		})
		for cycle := range cycles {
			suspendsPool := cycle%2 == 0
			if suspendsPool {
				r.suspend(p, symmem.DiscardContents)
			}

			suspension := suspendGroup(r, w)
			if suspension.Released <= 0 {
				r.failf("Suspend = %+v, want Released > 0", suspension)
			}

			resumeGroup(r, w)
			if suspendsPool {
				r.resume(p)
			}

			r.fill(b, float32(cycle+r.Rank()))
			wantSum := float32(cycle + (cycle + 1)) // the values of ranks 0 and 1
			replayGraph(r, sumGraph)
			r.checkAll(b, wantSum)
			replayGraph(r, messageGraph) // exchanges equal elements, so that b does not change
			r.checkAll(b, wantSum)
		}

		r.checkSum(w, b)
		r.ok(w.Barrier(r.ctx, nil))
	})
}

// replayGraph replays a graph on the default stream and waits for it.
func replayGraph(r *rank, g *symmem.Graph) {
	r.t.Helper()
	r.ok(g.Launch(r.DefaultStream()))
	r.synchronize()
}

// TestSuspendedGroupRefusesCalls makes calls in a suspended group. Calls that need device memory
// must fail with advice. Calls that only compare values must succeed, and so must calls in other
// groups.
func TestSuspendedGroupRefusesCalls(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		g := r.split(r.World(), 0)
		p := r.pool()
		s := r.DefaultStream()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(g, b)
		barrierGraph := r.capture(func(s *symmem.Stream) { r.ok(g.Barrier(r.ctx, s)) })
		suspendGroup(r, g)
		_, err := g.Suspend(r.ctx)
		r.ok(err)         // a second Suspend does nothing
		r.alloc(p, 8*mib) // in a new segment, so that Register has work to do
		const advice = "call its Resume on every rank"
		refusals := map[string]error{
			"AllReduce": r.sum(g, b),
			"Barrier":   g.Barrier(r.ctx, s),
			"Launch":    barrierGraph.Launch(s),
			"Send":      g.Send(r.ctx, m, 1, symmem.Float32, 1-r.Rank(), s),
			"Register":  p.Register(r.ctx, g),
			"SetPath":   g.SetPath(r.ctx, symmem.PathPlain),
		}
		for name, err := range refusals {
			if !errors.Is(err, symmem.ErrSuspended) || !strings.Contains(err.Error(), advice) {
				r.failf("%s: got %v, want ErrSuspended with %q", name, err, advice)
			}
		}

		r.checkSum(r.World(), b) // another group
		_, err = p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantErr(err, symmem.ErrSuspended)
		r.ok(g.Check(r.ctx))
		r.ok(g.Agree(r.ctx, "value", 1))
		resumeGroup(r, g)
		r.ok(g.Resume(r.ctx)) // a second Resume does nothing
		r.checkSum(g, b)
		r.ok(barrierGraph.Launch(s))
		r.synchronize()
	})
}

// TestUnreceivedMessageRefusesSuspend calls Suspend while a message of the group has been sent and
// not received. All ranks must return the same error.
func TestUnreceivedMessageRefusesSuspend(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w := r.World()
		s := r.DefaultStream()
		m := r.unregistered(mib)
		// Backends may pass short and long messages in different ways.
		const short = 10       // elements
		const long = 100 << 10 // elements
		for _, count := range []int64{short, long} {
			if r.Rank() == 0 {
				r.ok(w.Send(r.ctx, m, count, symmem.Float32, 1, s))
				r.ok(s.Synchronize(r.ctx))
			}

			_, err := w.Suspend(r.ctx)
			r.wantErr(err, symmem.ErrBusy)
			if count == short { // texts holds one error of each rank
				texts.add(r, err)
			}

			if r.Rank() == 1 {
				r.ok(w.Recv(r.ctx, m, count, symmem.Float32, 0, s))
				r.ok(s.Synchronize(r.ctx))
			}

			r.ok(w.Check(r.ctx)) // by now, the message has been received
			suspendGroup(r, w)
			resumeGroup(r, w)
		}
	})
	if text := texts.requireSame(t, 2); !strings.Contains(text, "has not been received") {
		t.Errorf("got error %q, want one about an unreceived message", text)
	}
}

// TestSuspendedGroupCloses closes suspended groups, with and without suspended pools. Afterwards,
// the world must still be able to use the memory.
func TestSuspendedGroupCloses(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for _, suspendsPool := range []bool{false, true} {
			g := r.split(r.World(), 0)
			p := r.pool()
			b := r.window(p, mib)
			r.checkSum(g, b)
			if suspendsPool {
				r.suspend(p, symmem.DiscardContents)
			}

			suspendGroup(r, g)
			r.ok(g.Close())
			r.wantErr(g.Resume(r.ctx), symmem.ErrClosed)
			if suspendsPool {
				r.resume(p)
			}

			r.checkSum(r.World(), b)
		}
	})
}

// TestSuspendedGroupFails aborts a suspended group. Resume and other calls must return ErrAborted,
// not ErrSuspended.
func TestSuspendedGroupFails(t *testing.T) {
	runWithFault(t, 2, suspendOptions(), func(r *rank) {
		g := r.split(r.World(), 0)
		b := r.window(r.pool(), mib)
		r.checkSum(g, b)
		suspendGroup(r, g)
		g.Abort()
		<-g.Ended()
		r.wantErr(g.Resume(r.ctx), symmem.ErrAborted)
		r.wantErr(r.sum(g, b), symmem.ErrAborted)
	})
}
