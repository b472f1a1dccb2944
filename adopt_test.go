package symmem_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"symmem"
)

// TestJoin joins four ranks into two pairs. The order of the list gives the ranks in the group.
// Join must refuse wrong lists and wrong IDs.
func TestJoin(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)                // a buffer in memory that is registered with the world
		odd, even := r.Rank()|1, r.Rank()&^1 // ranks 1 and 0, or ranks 3 and 2
		g, err := r.Join(r.ctx, fmt.Sprintf("pair %d", r.Rank()/2), []int{odd, even})
		r.ok(err)
		wantRank := 1 - r.Rank()%2 // the odd rank is first in the list, so it has rank 0
		if g.Rank() != wantRank || g.Size() != 2 {
			r.failf("got rank %d of %d, want %d of 2", g.Rank(), g.Size(), wantRank)
		}

		r.checkSum(g, b)
		r.ok(g.Close())
		select {
		case <-g.Ended():
		default:
			r.failf("Ended() is not closed after Close")
		}

		const worldSize = 4
		otherRank := (r.Rank() + 1) % worldSize
		for name, ranks := range map[string][]int{
			"no ranks":          nil,
			"a repeated rank":   {r.Rank(), r.Rank()},
			"a rank too large":  {r.Rank(), 99},
			"a negative rank":   {r.Rank(), -1},
			"without this rank": {otherRank},
		} {
			_, err := r.Join(r.ctx, "wrong", ranks)
			if !errors.Is(err, symmem.ErrInvalid) {
				r.failf("Join with %s: got %v, want ErrInvalid", name, err)
			}
		}

		const maxErrorBytes = 200 // an error must not repeat a long ID
		for _, id := range []string{"", strings.Repeat("x", symmem.MaxGroupID+1)} {
			_, err = r.Join(r.ctx, id, []int{r.Rank()})
			r.wantErr(err, symmem.ErrInvalid)
			if len(err.Error()) > maxErrorBytes {
				r.failf("the error about an invalid ID of %d bytes has %d bytes, want at most %d",
					len(id), len(err.Error()), maxErrorBytes)
			}
		}

		// The longest ID is allowed, even if it is not valid UTF-8.
		notUTF8 := strings.Repeat(" \xff", symmem.MaxGroupID/2)
		g, err = r.Join(r.ctx, notUTF8, []int{r.Rank()})
		r.ok(err)
		r.ok(g.Close())
	})
}

// sumOfTwoRanks is the sum if rank 0 contributes 1 and rank 1 contributes 2.
const sumOfTwoRanks = 1 + 2

// TestCollectiveOnAdoptedStream calls a collective on the stream of another library, known by its
// handle. After ForgetStream, calls on the stream must fail, and the group must still work.
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
		r.checkAll(b, sumOfTwoRanks)
		if r.Interop().IsCapturing(ownerStream.Handle()) {
			r.failf("IsCapturing = true without a capture, want false")
		}

		r.Interop().ForgetStream(s)
		err = r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s)
		r.wantErr(err, symmem.ErrClosed)
		r.checkSum(r.World(), b)
	})
}

// TestForeignCaptureRecordsCollectives adopts a stream, which another stream object owns. The owner
// captures a collective on the adopted stream and replays it. During the capture, calls that cannot
// be captured must fail.
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
		r.alloc(p, 64*mib) // in a new segment, so that Register has work to do
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		r.wantErr(p.Trim(r.ctx, 0), symmem.ErrCapturing)
		graph, err := ownerStream.EndCapture()
		r.ok(err)
		for range 3 { // replays
			r.fill(b, float32(r.Rank()+1))
			r.ok(graph.Launch(ownerStream))
			r.ok(ownerStream.Synchronize(r.ctx))
			r.checkAll(b, sumOfTwoRanks)
		}

		r.ok(graph.Close())
		r.ok(p.Register(r.ctx, r.World()))
		r.Interop().ForgetStream(s)
	})
}

// TestForeignCaptureOnOneRankFailsTrimOnAll calls Trim on both ranks while one of them captures.
// Trim releases unused segments, so it must fail on both ranks and name the capturing rank.
func TestForeignCaptureOnOneRankFailsTrimOnAll(t *testing.T) {
	runRanks(t, 2, symmem.Options{Timeout: 10 * time.Second}, func(r *rank) {
		p := r.pool()
		buffer := r.alloc(p, mib)
		r.ok(buffer.Free()) // leaves a segment for Trim
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
			want := fmt.Sprintf("rank %d", capturingRank)
			if !strings.Contains(err.Error(), want) {
				r.failf("got error %q, want one that names %s", err, want)
			}

			if r.Rank() == capturingRank {
				graph, err := owner.EndCapture()
				r.ok(err)
				r.ok(graph.Close())
			}
		}

		r.ok(p.Trim(r.ctx, 0))
		if n := p.Stats().Segments; n != 0 {
			r.failf("%d segments are mapped after Trim, want 0", n)
		}

		r.Interop().ForgetStream(adopted)
	})
}

// TestDivergenceNamesForeignCallSites reports call sites of another language to symmem. The ranks
// then make different notes, which are events that another library defines. The error must show
// the note and the line of each rank, and must be the same on both.
func TestDivergenceNamesForeignCallSites(t *testing.T) {
	var texts errorTexts
	const (
		neverInBackground = -1 // only the calls of Check below compare the ranks
		noteKind          = 7
		firstValue        = 4096 // of rank 0
	)
	runRanks(t, 2, symmem.Options{CheckInterval: neverInBackground}, func(r *rank) {
		p := r.pool()
		ownLine := fmt.Sprintf("model.py:%d", r.Rank()+1)
		site := r.Interop().Site(ownLine)
		again := r.Interop().Site(ownLine)
		if site == 0 || site != again {
			r.failf("Site = %d, then %d; want the same nonzero number for the same line", site, again)
		}

		_, err := r.Interop().At(site).Alloc(p, r.DefaultStream(), mib)
		r.ok(err)
		const sameKind, sameValue, invalidKind = 1, 2, -1
		r.ok(r.Interop().At(site).Note(p, sameKind, sameValue))
		r.wantErr(r.Interop().At(site).Note(p, invalidKind, sameValue), symmem.ErrInvalid)
		r.ok(r.World().Check(r.ctx)) // different call sites are no divergence
		r.ok(r.Interop().At(site).Note(p, noteKind, int64(firstValue+r.Rank())))
		d := r.wantDivergence(r.World().Check(r.ctx))
		for rank, side := range d.Ranks() {
			event := fmt.Sprintf("note %d of kind %d", firstValue+rank, noteKind)
			line := fmt.Sprintf("model.py:%d", rank+1)
			if side.Event != event || side.Site != line {
				r.failf("rank %d: got %+v, want %s at %s", rank, side, event, line)
			}
		}

		texts.add(r, d)
	})
	texts.requireSame(t, 2)
}

// TestSetCheck raises the check level of a running world. Calls with different counts, which the
// old level would not compare, must then be reported.
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
		count := int64(1 + r.Rank()) // differs between the ranks
		err := r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}

		r.wantDivergence(err)
	})
}

// TestSetCheckStartsBackgroundCheck makes no call that compares the ranks after SetCheck. The check
// in the background must find the divergence.
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

// TestCallPathOverridesGroupPath makes calls with a path in a world whose path is the window path.
func TestCallPathOverridesGroupPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), mib)
		m := b.Memory()
		for _, choice := range []symmem.PathChoice{
			symmem.PathPlain,
			symmem.PathWindow,
			symmem.PathAuto,    // takes the window path, because the memory is registered
			symmem.PathDefault, // takes the path of the world
		} {
			r.fill(b, 1)
			call := symmem.Call{
				Operation: symmem.OpAllReduce, Type: symmem.Float32, Count: b.Size() / 4,
				Send: m, Recv: m, Path: choice,
			}
			r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
			r.synchronize()
			r.checkAll(b, 1+1)
		}

		if paths := r.World().Stats().Paths; paths["plain"] != 1 || paths["window"] != 3 {
			r.failf("Paths = %v, want 1 plain and 3 window", paths)
		}

		unknownPath := symmem.Call{Path: 99}
		r.wantErr(r.Interop().Do(r.ctx, r.World(), unknownPath, nil), symmem.ErrInvalid)
	})
}

// TestReserveOn reserves registered memory for a stream. A buffer of the reserved size must fit
// into it, so that AllocOn maps no segment.
func TestReserveOn(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const size = 32 * mib
		p, s := r.pool(), r.stream()
		r.ok(p.ReserveOn(r.ctx, s, size, r.World()))
		reserved := p.Stats().Segments
		b, err := p.AllocOn(s, size)
		r.ok(err)
		if n := p.Stats().Segments; n != reserved {
			r.failf("the pool has %d segments after AllocOn, want the %d reserved ones", n, reserved)
		}

		if !symmem.Contains(p, b.Address()) {
			r.failf("the buffer of AllocOn at %#x is not in a segment of the pool", b.Address())
		}

		if !r.World().IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = false for the buffer of AllocOn, want true")
		}

		r.wantErr(p.ReserveOn(r.ctx, nil, mib, nil), symmem.ErrInvalid)
	})
}

// TestAdoptCommunicatorUnsupportedOnHost checks what the host backend lacks: communicators of other
// libraries, and a device with a number.
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
