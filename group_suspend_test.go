package symmem_test

import (
	"errors"
	"strings"
	"testing"

	"symmem"
)

func suspendGroup(r *rank, g *symmem.Group) symmem.Suspension {
	r.t.Helper()
	released, err := g.Suspend(r.ctx)
	r.ok(err)
	if !g.Suspended() {
		r.failf("Suspended() = false after Suspend, want true")
	}
	return released
}

func resumeGroup(r *rank, g *symmem.Group) {
	r.t.Helper()
	r.ok(g.Resume(r.ctx))
	if g.Suspended() {
		r.failf("Suspended() = true after Resume, want false")
	}
}

// TestSuspendedGroupReplaysGraphs suspends a group repeatedly, every other time with its pool.
func TestSuspendedGroupReplaysGraphs(t *testing.T) {
	const cycles = 100
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w, p, s := r.World(), r.pool(), r.DefaultStream()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(w, b)
		sumGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		})
		messageGraph := r.capture(func(s *symmem.Stream) {
			r.ok(w.Send(r.ctx, m, 10, symmem.Float32, 1-r.Rank(), s))
			r.ok(w.Recv(r.ctx, m, 10, symmem.Float32, 1-r.Rank(), s))
		})
		for cycle := range cycles {
			if cycle%2 == 0 {
				r.suspend(p, symmem.DiscardContents)
			}
			if released := suspendGroup(r, w); released.Released <= 0 {
				r.failf("Suspend = %+v, want Released > 0", released)
			}
			resumeGroup(r, w)
			if cycle%2 == 0 {
				r.resume(p)
			}
			r.fill(b, float32(cycle+r.Rank()))
			r.ok(sumGraph.Launch(s))
			r.synchronize()
			r.checkAll(b, float32(2*cycle+1))
			r.ok(messageGraph.Launch(s))
			r.synchronize()
			r.checkAll(b, float32(2*cycle+1))
		}
		r.checkSum(w, b)
		r.ok(w.Barrier(r.ctx, nil))
	})
}

func TestSuspendedGroupRefusesCalls(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w, p, s := r.split(r.World(), 0), r.pool(), r.DefaultStream()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(w, b)
		g := r.capture(func(s *symmem.Stream) { r.ok(w.Barrier(r.ctx, s)) })
		suspendGroup(r, w)
		_, err := w.Suspend(r.ctx)
		r.ok(err) // the group is already suspended
		r.alloc(p, 8*mib)
		for name, err := range map[string]error{
			"AllReduce": r.sum(w, b), "Barrier": w.Barrier(r.ctx, s), "Launch": g.Launch(s),
			"Send":     w.Send(r.ctx, m, 1, symmem.Float32, 1-r.Rank(), s),
			"Register": p.Register(r.ctx, w), "SetPath": w.SetPath(r.ctx, symmem.PathPlain),
		} {
			if !errors.Is(err, symmem.ErrSuspended) ||
				!strings.Contains(err.Error(), "call its Resume on every rank") {
				r.failf("%s: got %v, want ErrSuspended with the advice to call Resume", name, err)
			}
		}
		r.checkSum(r.World(), b) // other groups are not affected
		_, err = p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantErr(err, symmem.ErrSuspended)
		r.ok(w.Check(r.ctx))
		r.ok(w.Agree(r.ctx, "value", 1))
		resumeGroup(r, w)
		r.ok(w.Resume(r.ctx)) // the group is not suspended
		r.checkSum(w, b)
		r.ok(g.Launch(s))
		r.synchronize()
	})
}

// TestUnreceivedMessageRefusesSuspend suspends a group before a message has been received. All
// errors must name the same rank.
func TestUnreceivedMessageRefusesSuspend(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w, s := r.World(), r.DefaultStream()
		m := r.unregistered(mib)
		for _, count := range []int64{10, 100 << 10} {
			if r.Rank() == 0 {
				r.ok(w.Send(r.ctx, m, count, symmem.Float32, 1, s))
				r.ok(s.Synchronize(r.ctx))
			}
			_, err := w.Suspend(r.ctx)
			r.wantErr(err, symmem.ErrBusy)
			if count == 10 {
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

// TestSuspendedGroupCloses closes suspended groups, with and without suspended pools.
func TestSuspendedGroupCloses(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for _, suspendsPool := range []bool{false, true} {
			g, p := r.split(r.World(), 0), r.pool()
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

func TestSuspendedGroupFails(t *testing.T) {
	runWithFault(t, 2, suspendOptions(), func(r *rank) {
		g, p := r.split(r.World(), 0), r.pool()
		b := r.window(p, mib)
		r.checkSum(g, b)
		suspendGroup(r, g)
		g.Abort()
		<-g.Ended()
		r.wantErr(g.Resume(r.ctx), symmem.ErrAborted)
		r.wantErr(r.sum(g, b), symmem.ErrAborted)
	})
}
