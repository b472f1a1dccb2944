package symmem_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"symmem"
)

func (r *rank) suspend(p *symmem.Pool, c symmem.Contents) symmem.Suspension {
	r.t.Helper()
	released, err := p.Suspend(r.ctx, c)
	r.ok(err)
	if !p.Suspended() {
		r.failf("Suspended() = false after Suspend, want true")
	}

	return released
}

func (r *rank) resume(p *symmem.Pool) {
	r.t.Helper()
	r.ok(p.Resume(r.ctx))
	if p.Suspended() {
		r.failf("Suspended() = true after Resume, want false")
	}
}

// suspendOptions returns options with a path whose graphs can be suspended on every backend.
func suspendOptions() symmem.Options {
	if os.Getenv(backendVariable) == "nccl" {
		return symmem.Options{Path: symmem.PathDirect}
	}

	return symmem.Options{Path: symmem.PathAuto}
}

// TestSuspendRefusesGraphsOfPlainPath suspends a pool while a graph on NCCL's plain path is open.
// NCCL maps the memory of such a graph on other ranks.
func TestSuspendRefusesGraphsOfPlainPath(t *testing.T) {
	skipOnHost(t, "only NCCL maps the memory of graphs on other ranks")
	runRanks(t, 2, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		p := r.pool()
		m := r.window(p, mib).Memory()
		s := r.DefaultStream()
		r.ok(s.BeginCapture())
		r.ok(r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s))
		g, err := s.EndCapture()
		r.ok(err)
		if _, err := p.Suspend(r.ctx, symmem.KeepContents); !errors.Is(err, symmem.ErrBusy) ||
			!strings.Contains(err.Error(), "NCCL_GRAPH_REGISTER=0") {
			r.failf("Suspend with an open graph = %v, want ErrBusy and advice", err)
		}

		r.ok(g.Close())
		r.suspend(p, symmem.KeepContents)
		r.resume(p)
	})
}

func TestSuspendedPoolReplaysGraphs(t *testing.T) {
	const cycles = 100
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b, other := r.window(p, mib), r.alloc(p, 6*mib) // in a second segment
		r.ok(p.Register(r.ctx, r.World()))
		r.fill(other, 1)
		m := b.Memory()
		g := r.capture(func(s *symmem.Stream) {
			r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		})
		mapped := int64(0)
		for s := range p.Segments() {
			mapped += s.Bytes
		}

		address := b.Address()
		for cycle := range cycles {
			if got := r.suspend(p, symmem.DiscardContents); got.Released != mapped || got.Kept != nil {
				r.failf("Suspend = %+v, want %d bytes released and nothing kept", got, mapped)
			}

			r.resume(p)
			if cycle == 0 {
				r.checkAll(b, 0)
				r.checkAll(other, 0)
			}

			if b.Address() != address {
				r.failf("Address() = %#x after cycle %d, want %#x", b.Address(), cycle, address)
			}

			r.fill(b, float32(cycle+r.Rank()))
			r.ok(g.Launch(r.DefaultStream()))
			r.synchronize()
			r.checkAll(b, float32(2*cycle+1))
		}

		r.checkSum(r.World(), other)
		c := r.alloc(p, mib)
		r.checkSum(r.World(), c)
	})
}

func TestSuspendKeepsContents(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b, other := r.window(p, mib), r.alloc(p, 6*mib)
		for cycle := range 3 {
			r.fill(b, float32(cycle+10))
			r.fill(other, float32(cycle+20))
			r.suspend(p, symmem.KeepContents)
			r.resume(p)
			r.checkAll(b, float32(cycle+10))
			r.checkAll(other, float32(cycle+20))
		}

		r.checkSum(r.World(), b)
	})
}

func TestSuspendedPoolRefusesCalls(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p, q, s := r.pool(), r.pool(), r.DefaultStream()
		b, freed, open := r.window(p, mib), r.alloc(p, mib), r.window(q, mib)
		m, raw := b.Memory(), r.memoryAt(b.Address(), b.Size())
		g := r.capture(func(s *symmem.Stream) { r.ok(s.Fill(raw, 1)) })
		r.checkSum(r.World(), b) // the group keeps a plan
		r.suspend(p, symmem.DiscardContents)
		_, err := p.Suspend(r.ctx, symmem.DiscardContents)
		r.ok(err) // the pool is already suspended
		_, allocErr := p.Alloc(1)
		_, viewErr := symmem.View[byte](b)
		for name, err := range map[string]error{
			"Alloc": allocErr, "View": viewErr, "Fill": s.Fill(m, 1), "Copy": s.Copy(open.Memory(), m),
			"Copy of an address": s.Copy(raw, open.Memory()), "AllReduce": r.sum(r.World(), b),
			"Reserve": p.Reserve(r.ctx, 1, r.World()), "Trim": p.Trim(r.ctx, 0), "Launch": g.Launch(s),
			"UseOn": b.UseOn(s),
		} {
			if !errors.Is(err, symmem.ErrSuspended) || !strings.Contains(err.Error(), "Pool.Resume") {
				r.failf("%s: got %v, want an ErrSuspended that advises Pool.Resume", name, err)
			}
		}

		r.checkSum(r.World(), open) // other pools are not affected
		if segment, offset := b.Segment(), b.Offset(); segment != 0 || offset != 0 {
			r.failf("the buffer is at offset %d of segment %d, want offset 0 of segment 0", offset, segment)
		}

		r.ok(freed.Free())
		r.ok(r.World().Check(r.ctx))
		r.resume(p)
		r.ok(p.Resume(r.ctx)) // the pool is not suspended
		r.checkSum(r.World(), b)
		r.ok(g.Launch(s))
		r.synchronize()
	})
}

func TestSuspendRefusalIsSameOnAllRanks(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(r *rank, b symmem.Buffer) (end func())
		want  error
		text  string
	}{
		"unfinished work": {func(r *rank, b symmem.Buffer) func() {
			ended := make(chan struct{})
			s, err := r.NewStream()
			r.ok(err)
			r.ok(s.Host(func() { <-ended }))
			r.ok(s.Fill(b.Memory(), 1))
			return func() { close(ended); r.ok(s.Synchronize(r.ctx)) }
		}, symmem.ErrBusy, "rank 1: stream 1 has unfinished work"},
		"capture": {func(r *rank, b symmem.Buffer) func() {
			s := r.DefaultStream()
			r.ok(s.BeginCapture())
			r.ok(s.Fill(b.Memory(), 1))
			return func() {
				g, err := s.EndCapture()
				r.ok(err)
				r.ok(g.Launch(s))
				r.synchronize()
				r.ok(g.Close())
			}
		}, symmem.ErrCapturing, "rank 1: "},
		"call in progress": {func(_ *rank, b symmem.Buffer) func() {
			return symmem.EnterPool(b.Pool())
		}, symmem.ErrBusy, "rank 1: a call on another goroutine uses the pool"},
		"communicator of another library": {func(r *rank, b symmem.Buffer) func() {
			a := symmem.AdoptFake(r.World())
			symmem.HoldWindow(a, b)
			return func() { symmem.DropAdopted(a) }
		}, symmem.ErrBusy, `rank 1: memory is registered with communicator "fake"`},
	} {
		t.Run(name, func(t *testing.T) {
			var texts errorTexts
			runRanks(t, 3, suspendOptions(), func(r *rank) {
				p := r.pool()
				b := r.window(p, mib)
				r.fill(b, 7)
				end := func() {}
				if r.Rank() == 1 {
					end = c.begin(r, b)
				}

				_, err := p.Suspend(r.ctx, symmem.DiscardContents)
				r.wantErr(err, c.want)
				texts.add(r, err)
				if p.Suspended() {
					r.failf("Suspended() = true after Suspend was refused, want false")
				}

				end()
				r.checkSum(r.World(), b)
				r.suspend(p, symmem.KeepContents)
				r.resume(p)
				r.checkAll(b, 6)
			})
			if text := texts.requireSame(t, 3); !strings.Contains(text, c.text) {
				t.Errorf("got error %q, want one that contains %q", text, c.text)
			}
		})
	}
}

func TestSuspendNamesCollectiveInProgress(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.checkSum(r.World(), b)
		sub := r.split(r.World(), 0)
		s, err := r.NewStream()
		r.ok(err)
		if r.Rank() == 0 {
			r.ok(sub.Barrier(r.ctx, s))
		}

		_, err = p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantErr(err, symmem.ErrBusy)
		if text := err.Error(); !strings.Contains(text, "rank 0: stream 1 has unfinished work") {
			r.failf("got error %q, want one that names stream 1 of rank 0", text)
		}

		if r.Rank() == 1 {
			r.ok(sub.Barrier(r.ctx, s))
		}

		r.ok(s.Synchronize(r.ctx))
		r.suspend(p, symmem.DiscardContents)
		r.resume(p)
		r.checkSum(r.World(), b)
	})
}

// TestSuspendedWindowsOfSubgroups suspends a pool with windows in overlapping groups.
func TestSuspendedWindowsOfSubgroups(t *testing.T) {
	runRanks(t, 3, suspendOptions(), func(r *rank) {
		low, high := r.split(r.World(), min(0, 1-r.Rank())), r.split(r.World(), min(0, r.Rank()-1))
		p := r.pool()
		b := r.window(p, mib)
		check := func() {
			for _, g := range []*symmem.Group{r.World(), low, high} {
				if g != nil {
					r.checkSum(g, b)
				}
			}
		}
		check()
		for range 5 {
			r.suspend(p, symmem.DiscardContents)
			r.resume(p)
			check()
		}
	})
}

func TestPoolWithoutDomainIsSuspended(t *testing.T) {
	runRanks(t, 1, suspendOptions(), func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
		b := r.alloc(p, mib)
		r.fill(b, 3)
		r.suspend(p, symmem.KeepContents)
		r.resume(p)
		r.checkAll(b, 3)
		r.suspend(p, symmem.DiscardContents)
		r.resume(p)
		r.checkAll(b, 0)
		_, err := p.Suspend(r.ctx, symmem.Contents(7))
		r.wantErr(err, symmem.ErrInvalid)
	})
}

// TestWindowsAreRequestedWhilePoolIsSuspended lets a group use the window path for the first time
// while a pool with windows in the group is suspended.
func TestWindowsAreRequestedWhilePoolIsSuspended(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		w, p := r.World(), r.pool()
		b := r.window(p, mib)
		r.checkSum(w, b)
		r.suspend(p, symmem.DiscardContents)
		r.ok(w.SetPath(r.ctx, symmem.PathWindow))
		r.resume(p)
		r.checkSum(w, b)
		r.checkSum(w, r.window(p, 8*mib))
	})
}

func TestSuspendedPoolCloses(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for _, live := range []bool{false, true} {
			p := r.pool()
			b := r.window(p, mib)
			r.suspend(p, symmem.KeepContents)
			if !live {
				r.ok(b.Free())
			}

			r.closePool(p)
			r.wantErr(p.Resume(r.ctx), symmem.ErrClosed)
			_, err := p.Suspend(r.ctx, symmem.DiscardContents)
			r.wantErr(err, symmem.ErrClosed)
			_, err = p.Alloc(1)
			r.wantErr(err, symmem.ErrClosed)
		}
	})
}

// TestResumeAfterFault suspends a pool, aborts its domain and resumes the pool. The memory must
// then be usable, and so must the windows of a group that has not failed.
func TestResumeAfterFault(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		domain, healthy := r.split(r.World(), 0), r.split(r.World(), 0)
		p := r.poolWith(symmem.PoolOptions{Domain: domain, FirstSegment: 4 * mib})
		b := r.alloc(p, mib)
		r.checkSum(domain, b)
		r.checkSum(healthy, b)
		r.suspend(p, symmem.DiscardContents)
		if r.Rank() == 1 {
			domain.Abort()
		}

		r.ok(r.withTimeout(time.Minute, func(ctx context.Context) error {
			select {
			case <-domain.Ended():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
		r.wantErr(p.Resume(r.ctx), symmem.ErrAborted)
		if p.Suspended() {
			r.failf("Suspended() = true after Resume, want false")
		}

		r.fill(b, 2)
		r.checkAll(b, 2)
		r.checkSum(healthy, b)
		r.checkSum(healthy, r.alloc(p, mib))
		_, err := p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantErr(err, symmem.ErrAborted)
		r.checkSum(healthy, b)
	})
}

// TestSuspendNamesAbsentRank suspends a pool on one rank only. The error must name the other rank.
func TestSuspendNamesAbsentRank(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathAuto, Timeout: 2 * time.Second}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		if r.Rank() == 1 {
			<-r.World().Ended()
			return
		}

		_, err := p.Suspend(r.ctx, symmem.DiscardContents)
		r.wantTimeout(err, 1)
		r.fill(b, 2)
		r.checkAll(b, 2)
	})
}

// TestRefusalPrecedesTimeout checks that a rank stops waiting for its own calls and streams long
// before the other ranks stop waiting for its answer.
func TestRefusalPrecedesTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{time.Millisecond, time.Second, 10 * time.Minute} {
		if waits := 2 * symmem.WorkLimit(timeout); waits > timeout/2 {
			t.Errorf("Suspend waits for work for %v, want at most %v for a timeout of %v", waits, timeout/2,
				timeout)
		}
	}
}
