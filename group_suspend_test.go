package symmem_test

import (
	"errors"
	"strings"
	"testing"

	"symmem"
)

// Group.Suspend releases the group's device memory, and Pool.Suspend the memory of buffers.

// suspendGroup must be called on all ranks.
func suspendGroup(r *rank, g *symmem.Group) symmem.Suspension {
	r.t.Helper()
	suspension, err := g.Suspend(r.ctx)
	r.ok(err)
	if !g.Suspended() {
		r.failf("Suspended() = false after Suspend, want true")
	}

	return suspension
}

// resumeGroup must be called on all ranks.
func resumeGroup(r *rank, g *symmem.Group) {
	r.t.Helper()
	r.ok(g.Resume(r.ctx))
	if g.Suspended() {
		r.failf("Suspended() = true after Resume, want false")
	}
}

func TestSuspendedGroupReplaysGraphs(t *testing.T) {
	const cycles = 100
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w := r.World()
		p := r.pool()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(w, b)
		const elementBytes = 4
		count := b.Size() / elementBytes
		sumGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
		})
		const messageCount = 10 // arbitrary
		peer := 1 - r.Rank()
		exchangeGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.Send(r.ctx, m, messageCount, symmem.Float32, peer, s))
			r.ok(w.Recv(r.ctx, m, messageCount, symmem.Float32, peer, s))
		})
		for cycle := range cycles {
			alsoSuspendsPool := cycle%2 == 0
			if alsoSuspendsPool {
				r.suspend(p, symmem.DiscardContents)
			}

			suspension := suspendGroup(r, w)
			if suspension.Released <= 0 {
				r.failf("Suspend = %+v, want Released > 0", suspension)
			}

			resumeGroup(r, w)
			if alsoSuspendsPool {
				r.resume(p)
			}

			r.fill(b, float32(cycle+r.Rank()))
			sum := float32(cycle + (cycle + 1)) // of ranks 0 and 1
			replayGraph(r, sumGraph)
			r.checkAll(b, sum)
			replayGraph(r, exchangeGraph)
			r.checkAll(b, sum) // unchanged: each rank received the sum from its peer
		}

		r.checkSum(w, b)
		r.ok(w.Barrier(r.ctx, nil))
	})
}

func replayGraph(r *rank, g *symmem.Graph) {
	r.t.Helper()
	r.ok(g.Launch(r.DefaultStream()))
	r.synchronize()
}

// A suspended group refuses to use device memory, but permits Check and Agree.
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
		r.ok(err) // Suspend may be repeated

		r.alloc(p, 8*mib) // in a new segment, so that Register has work
		const advice = "call its Resume on every rank"
		errByCall := map[string]error{
			"AllReduce": r.sum(g, b),
			"Barrier":   g.Barrier(r.ctx, s),
			"Launch":    barrierGraph.Launch(s),
			"Send":      g.Send(r.ctx, m, 1, symmem.Float32, 1-r.Rank(), s),
			"Register":  p.Register(r.ctx, g),
			"SetPath":   g.SetPath(r.ctx, symmem.PathPlain),
		}
		for name, err := range errByCall {
			if !errors.Is(err, symmem.ErrSuspended) || !strings.Contains(err.Error(), advice) {
				r.failf("%s: got %v, want ErrSuspended with %q", name, err, advice)
			}
		}

		r.checkSum(r.World(), b)
		_, err = p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantErr(err, symmem.ErrSuspended)
		r.ok(g.Check(r.ctx))
		r.ok(g.Agree(r.ctx, "value", 1))
		resumeGroup(r, g)
		r.ok(g.Resume(r.ctx)) // Resume may be repeated
		r.checkSum(g, b)
		r.ok(barrierGraph.Launch(s))
		r.synchronize()
	})
}

func TestUnreceivedMessageRefusesSuspend(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w := r.World()
		s := r.DefaultStream()
		m := r.unregistered(mib)
		const shortCount, longCount = 10, 100 << 10 // backends may send them in different ways
		for _, count := range []int64{shortCount, longCount} {
			if r.Rank() == 0 {
				r.ok(w.Send(r.ctx, m, count, symmem.Float32, 1, s))
				r.ok(s.Synchronize(r.ctx))
			}

			_, err := w.Suspend(r.ctx)
			r.wantErr(err, symmem.ErrBusy)
			if count == shortCount { // texts takes only one error per rank
				texts.add(r, err)
			}

			if r.Rank() == 1 {
				r.ok(w.Recv(r.ctx, m, count, symmem.Float32, 0, s))
				r.ok(s.Synchronize(r.ctx))
			}

			r.ok(w.Check(r.ctx)) // waits until rank 1 has received the message
			suspendGroup(r, w)
			resumeGroup(r, w)
		}
	})
	if text := texts.requireSame(t, 2); !strings.Contains(text, "has not been received") {
		t.Errorf("got error %q, want one about an unreceived message", text)
	}
}

// After a suspended group has closed, the world can still use memory registered with the group.
func TestSuspendedGroupCloses(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for _, alsoSuspendsPool := range []bool{false, true} {
			g := r.split(r.World(), 0)
			p := r.pool()
			b := r.window(p, mib)
			r.checkSum(g, b)
			if alsoSuspendsPool {
				r.suspend(p, symmem.DiscardContents)
			}

			suspendGroup(r, g)
			r.ok(g.Close())
			r.wantErr(g.Resume(r.ctx), symmem.ErrClosed)
			if alsoSuspendsPool {
				r.resume(p)
			}

			r.checkSum(r.World(), b)
		}
	})
}

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
