package symmem_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"symmem"
)

func TestJoin(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		odd, even := r.Rank()|1, r.Rank()&^1 // ranks 1 and 0, or ranks 3 and 2
		g, err := r.Join(r.ctx, fmt.Sprintf("pair %d", r.Rank()/2), []int{odd, even})
		r.ok(err)
		if want := 1 - r.Rank()%2; g.Rank() != want || g.Size() != 2 {
			r.failf("got rank %d of %d, want %d of 2", g.Rank(), g.Size(), want)
		}
		r.checkSum(g, b)
		r.ok(g.Close())
		select {
		case <-g.Ended():
		default:
			r.failf("Ended() is not closed after Close")
		}
		otherRank := (r.Rank() + 1) % 4
		for _, ranks := range [][]int{
			nil, {r.Rank(), r.Rank()}, {r.Rank(), 99}, {r.Rank(), -1}, {otherRank},
		} {
			_, err := r.Join(r.ctx, "wrong", ranks)
			r.wantErr(err, symmem.ErrInvalid)
		}
		for _, id := range []string{"", strings.Repeat("x", symmem.MaxGroupID+1)} {
			_, err = r.Join(r.ctx, id, []int{r.Rank()})
			r.wantErr(err, symmem.ErrInvalid)
			if len(err.Error()) > 200 {
				r.failf("the error about an invalid id has %d bytes, want at most 200", len(err.Error()))
			}
		}
		notUTF8 := strings.Repeat(" \xff", symmem.MaxGroupID/2)
		g, err = r.Join(r.ctx, notUTF8, []int{r.Rank()})
		r.ok(err)
		r.ok(g.Close())
	})
}

func TestCollectiveOnAdoptedStream(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		ownerStream := r.stream()
		s, err := r.Interop().AdoptStream(ownerStream.Handle())
		r.ok(err)
		r.fill(b, float32(r.Rank()+1))
		m := b.Memory()
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.ok(s.Synchronize(r.ctx))
		r.checkAll(b, 3)
		if r.Interop().IsCapturing(ownerStream.Handle()) {
			r.failf("IsCapturing = true without a capture, want false")
		}
		r.Interop().ForgetStream(s)
		err = r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s)
		r.wantErr(err, symmem.ErrClosed)
		r.checkSum(r.World(), b)
	})
}

// TestForeignCaptureRecordsCollectives captures a collective on an adopted stream, whose capture
// another stream object has begun, and replays it.
func TestForeignCaptureRecordsCollectives(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("no other library captures on the host", symmem.ErrUnsupported)
		}
		p := r.pool()
		b := r.window(p, mib)
		ownerStream := r.stream()
		s, err := r.Interop().AdoptStream(ownerStream.Handle())
		r.ok(err)
		m := b.Memory()
		r.ok(ownerStream.BeginCapture())
		if !r.Interop().IsCapturing(ownerStream.Handle()) {
			r.failf("IsCapturing = false during a capture, want true")
		}
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		// Record is refused, because the event would complete before the captured work has run.
		e, err := r.NewEvent()
		r.ok(err)
		r.wantErr(s.Record(e), symmem.ErrCapturing)
		r.alloc(p, 64*mib)
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		r.wantErr(p.Trim(r.ctx, 0), symmem.ErrCapturing)
		graph, err := ownerStream.EndCapture()
		r.ok(err)
		for range 3 {
			r.fill(b, float32(r.Rank()+1))
			r.ok(graph.Launch(ownerStream))
			r.ok(ownerStream.Synchronize(r.ctx))
			r.checkAll(b, 3)
		}
		r.ok(graph.Close())
		r.ok(p.Register(r.ctx, r.World()))
		r.Interop().ForgetStream(s)
	})
}

func TestForeignCaptureOnOneRankFailsTrimOnAll(t *testing.T) {
	runRanks(t, 2, symmem.Options{Timeout: 10 * time.Second}, func(r *rank) {
		p := r.pool()
		r.ok(r.alloc(p, mib).Free())
		owner := r.stream()
		adopted, err := r.Interop().AdoptStream(owner.Handle())
		r.ok(err)
		if r.Device().Addressable {
			owner = adopted // on the host, no other library captures
		}
		for capturingRank := range r.Size() {
			if r.Rank() == capturingRank {
				r.ok(owner.BeginCapture())
			}
			err := p.Trim(r.ctx, 0)
			r.wantErr(err, symmem.ErrCapturing)
			if want := fmt.Sprintf("rank %d", capturingRank); !strings.Contains(err.Error(), want) {
				r.failf("got error %q, want one that names %s", err, want)
			}
			if r.Rank() == capturingRank {
				graph, err := owner.EndCapture()
				r.ok(err)
				r.ok(graph.Close())
			}
		}
		r.ok(p.Trim(r.ctx, 0))
		if n := p.Stats(); n.Segments != 0 {
			r.failf("%d segments are mapped after Trim, want 0", n.Segments)
		}
		r.Interop().ForgetStream(adopted)
	})
}

func TestDivergenceNamesForeignCallSites(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, symmem.Options{CheckInterval: -1}, func(r *rank) {
		p := r.pool()
		ownLine := fmt.Sprintf("model.py:%d", r.Rank()+1)
		site := r.Interop().Site(ownLine)
		if again := r.Interop().Site(ownLine); site == 0 || site != again {
			r.failf("Site = %d, then %d; want the same nonzero number for the same line", site, again)
		}
		_, err := r.Interop().At(site).Alloc(p, r.DefaultStream(), mib)
		r.ok(err)
		r.ok(r.Interop().At(site).Note(p, 1, 2))
		r.wantErr(r.Interop().At(site).Note(p, -1, 2), symmem.ErrInvalid)
		r.ok(r.World().Check(r.ctx))
		r.ok(r.Interop().At(site).Note(p, 7, int64(4096+r.Rank())))
		d := r.wantDivergence(r.World().Check(r.ctx))
		for rank, side := range d.Ranks() {
			event := fmt.Sprintf("note %d of kind 7", 4096+rank)
			line := fmt.Sprintf("model.py:%d", rank+1)
			if side.Event != event || side.Site != line {
				r.failf("rank %d: got %+v, want %s at %s", rank, side, event, line)
			}
		}
		texts.add(r, d)
	})
	texts.requireSame(t, 2)
}

func TestSetCheck(t *testing.T) {
	const neverInBackground = -1
	o := symmem.Options{Check: symmem.CheckOff, CheckInterval: neverInBackground}
	runRanks(t, 2, o, func(r *rank) {
		p := r.pool()
		r.ok(r.SetCheck(r.ctx, symmem.CheckEvery))
		if r.Check() != symmem.CheckEvery {
			r.failf("Check() = %v, want every", r.Check())
		}
		b := r.window(p, mib)
		r.wantErr(r.SetCheck(r.ctx, symmem.CheckDefault), symmem.ErrInvalid)
		m := b.Memory()
		count := int64(1 + r.Rank())
		err := r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}
		r.wantDivergence(err)
	})
}

func TestSetCheckStartsBackgroundCheck(t *testing.T) {
	o := symmem.Options{Check: symmem.CheckOff, CheckInterval: time.Millisecond}
	runRanks(t, 2, o, func(r *rank) {
		p := r.pool()
		r.alloc(p, mib*int64(1+r.Rank())) // differs between the ranks
		r.ok(r.SetCheck(r.ctx, symmem.CheckRegistration))
		<-r.World().Ended()
		r.wantDivergence(r.World().Cause(r.ctx))
	})
}

func TestCallPathOverridesGroupPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), mib)
		m := b.Memory()
		for _, choice := range []symmem.PathChoice{
			symmem.PathPlain, symmem.PathWindow, symmem.PathAuto, symmem.PathDefault,
		} {
			r.fill(b, 1)
			call := symmem.Call{
				Operation: symmem.OpAllReduce, Type: symmem.Float32, Count: b.Size() / 4,
				Send: m, Recv: m, Path: choice,
			}
			r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
			r.synchronize()
			r.checkAll(b, 2)
		}
		if paths := r.World().Stats().Paths; paths["plain"] != 1 || paths["window"] != 3 {
			r.failf("Paths = %v, want 1 plain and 3 window", paths)
		}
		unknownPath := symmem.Call{Path: 99}
		r.wantErr(r.Interop().Do(r.ctx, r.World(), unknownPath, nil), symmem.ErrInvalid)
	})
}

func TestReserveOn(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p, s := r.pool(), r.stream()
		r.ok(p.ReserveOn(r.ctx, s, 32*mib, r.World()))
		segments := p.Stats().Segments
		b, err := p.AllocOn(s, 32*mib)
		r.ok(err)
		if p.Stats().Segments != segments || !symmem.Contains(p, b.Address()) ||
			!r.World().IsSymmetric(b.Memory()) {
			r.failf("the buffer of AllocOn is not in registered memory of the %d reserved segments: "+
				"the pool now has %d", segments, p.Stats().Segments)
		}
		r.wantErr(p.ReserveOn(r.ctx, nil, mib, nil), symmem.ErrInvalid)
	})
}

func TestAdoptCommunicatorUnsupportedOnHost(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		if !r.Device().Addressable {
			r.skip("communicators can be adopted on GPUs", symmem.ErrUnsupported)
		}
		const anyHandle = 1234
		_, err := r.Interop().AdoptCommunicator(anyHandle, "theirs", r.World())
		r.wantErr(err, symmem.ErrUnsupported)
		if r.Device().Ordinal != -1 {
			r.failf("Ordinal = %d, want -1", r.Device().Ordinal)
		}
	})
}
