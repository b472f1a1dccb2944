package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// A list of calls is a Call whose field More contains further calls. For example, an all-reduce
// with a gather in More is a list of two calls. The group runs all calls of a list with one Do.
//
// A path is the way in which a call runs: plain, window or direct. A window is memory that all
// ranks have registered.

// newListCall returns a list of three calls on the memory of u.pool: an all-reduce, a gather and a
// reduce-scatter. check fails the test unless all results are right.
//
// u.part(src, dst, n) returns n numbers from rank src for rank dst. They are larger for larger src.
func newListCall(u *unevenCall) (call symmem.Call, check func()) {
	me := u.Rank()
	n := u.counts[0] + 1 // at least 1, even if the gather is empty

	// The all-reduce sums the same n numbers of all ranks, in place.
	sum := u.allocateFilled(u.part(0, 0, n))

	// In the gather, rank r contributes counts[r] numbers.
	contribution := u.allocateFilled(u.part(me, 0, u.counts[me]))
	wantGathered := u.joinParts(func(src int) []int32 { return u.part(src, 0, u.counts[src]) })
	gathered := u.allocateFilled(make([]int32, len(wantGathered)))
	gather := symmem.Call{
		Operation: symmem.OpAllGatherV, Type: symmem.Int32, Send: contribution, Recv: gathered,
		Splits: &symmem.Splits{RecvCounts: u.counts},
	}

	// The reduce-scatter gives each rank n maxima over the numbers that all ranks have for it.
	scattered := u.allocateFilled(
		u.joinParts(func(dst int) []int32 { return u.part(me, dst, n) }))
	maxima := u.allocateFilled(make([]int32, n))
	reduceScatter := symmem.Call{
		Operation: symmem.OpReduceScatter, Type: symmem.Int32, Op: symmem.Max, Count: n,
		Send: scattered, Recv: maxima,
	}

	call = symmem.Call{
		Operation: symmem.OpAllReduce, Type: symmem.Int32, Op: symmem.Sum, Count: n,
		Send: sum, Recv: sum, More: []symmem.Call{gather, reduceScatter},
	}
	return call, func() {
		wantSum := u.part(0, 0, n)
		for i := range wantSum {
			wantSum[i] *= int32(u.Size())
		}

		u.check("AllReduce", sum, wantSum)
		u.check("AllGatherV", gathered, wantGathered)
		lastRank := u.Size() - 1 // has the largest numbers
		u.check("ReduceScatter", maxima, u.part(lastRank, me, n))
	}
}

// TestListOfCalls makes random lists on memory inside and outside windows. If call.Wait is true, Do
// must return only when the results are complete.
func TestListOfCalls(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runRanks(t, 3, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		pools := []*symmem.Pool{
			r.pool(), // its domain is the world, so calls register its memory
			r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib}), // has no domain
		}
		for range 10 {
			limits := []int{4, 100, 3000, 100_000} // several, so that small counts are frequent
			limit := limits[draw.IntN(len(limits))]
			n := int64(draw.IntN(limit))
			pool := pools[draw.IntN(len(pools))]
			u := unevenCall{rank: r, pool: pool, counts: []int64{n, n, n}}
			call, check := newListCall(&u)
			call.Wait = draw.IntN(2) == 0
			r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
			if !call.Wait {
				r.synchronize()
			}

			check()
		}
	})
}

// TestCapturedListOfCalls captures a list of two calls, which sum the two halves of a buffer. Each
// replay must compute both sums.
func TestCapturedListOfCalls(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const half = 2048 // bytes
		b := r.window(r.pool(), 2*half)
		firstHalf, err := b.Memory().Slice(0, half)
		r.ok(err)
		secondHalf, err := b.Memory().Slice(half, half)
		r.ok(err)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Count: half / 4, Send: firstHalf,
			Recv: firstHalf,
		}
		next := call
		next.Send = secondHalf
		next.Recv = secondHalf
		call.More = []symmem.Call{next}
		r.ok(r.DefaultStream().BeginCapture())
		r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
		g, err := r.DefaultStream().EndCapture()
		r.ok(err)
		for range 3 {
			r.fill(b, float32(1+r.Rank()))
			r.ok(g.Launch(r.DefaultStream()))
			r.checkAll(b, 1+2) // the values of ranks 0 and 1
		}

		r.ok(g.Close())
	})
}

// TestDifferentListsDiverge makes a list whose second call has another count on each rank. The
// error must show both calls and the line of code that makes them.
func TestDifferentListsDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		x := r.unregistered(64)
		y := r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: x, Recv: x, Wait: true,
		}
		next := call
		next.Send = y
		next.Recv = y
		next.Count = 5 + int64(r.Rank()) // 5 on rank 0, 6 on rank 1
		call.More = []symmem.Call{next}
		site := r.Interop().Site("model.py:7")
		err := r.Interop().At(site).Do(r.ctx, r.World(), call, nil)
		d := r.wantDivergence(err)
		for _, want := range []string{
			"AllReduce sum of 5 int32", "AllReduce sum of 6 int32", "model.py:7",
		} {
			if !strings.Contains(d.Error(), want) {
				r.failf("got the error %q, want one that contains %q", d, want)
			}
		}
	})
}

// TestInvalidListsAreRefused makes lists of a valid call and an invalid one. Do must refuse the
// whole list, so that the valid call does not run either.
func TestInvalidListsAreRefused(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		m := r.unregistered(64)
		sum := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: m, Recv: m,
		}
		message := sum
		message.Operation = symmem.OpSend
		message.Root = 1 - r.Rank() // the receiver
		negative := sum
		negative.Count = -1
		nested := sum
		nested.More = []symmem.Call{sum}
		for name, next := range map[string]symmem.Call{
			"a message":        message,
			"a negative count": negative,
			"a nested list":    nested,
		} {
			call := sum
			call.More = []symmem.Call{next}
			err := r.Interop().Do(r.ctx, r.World(), call, nil)
			if !errors.Is(err, symmem.ErrInvalid) {
				r.failf("%s in a list: got %v, want ErrInvalid", name, err)
			}
		}

		// If a refused list had queued a call, this call could fail.
		r.ok(r.Interop().Do(r.ctx, r.World(), sum, nil))
		r.synchronize()
	})
}

// TestPathOfListIsKept asks for the paths of a small gather, which can take the direct path, and a
// large gather in the same list, which cannot. The path choice of the list must apply to both. A
// call in More must not choose another path.
func TestPathOfListIsKept(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		// g is the world, but its direct path has only 8 KiB of memory for exchanging data.
		var ownWindowCheck func(*driver.Call) error // nil, so that the window path is unchanged
		g := symmem.WithChecks(r.World(), ownWindowCheck, checkSmallExchange)
		const smallBytes, largeBytes = 1 << 10, 32 << 10
		gather := func(bytes int64) symmem.Call { // each rank contributes this number of bytes
			recv := r.unregistered(2 * bytes)
			send, err := recv.Slice(int64(r.Rank())*bytes, bytes)
			r.ok(err)
			return symmem.Call{
				Operation: symmem.OpAllGatherV, Type: symmem.Uint8, Send: send, Recv: recv,
				Splits: &symmem.Splits{RecvCounts: []int64{bytes, bytes}},
			}
		}
		for _, row := range []struct {
			choice    symmem.PathChoice
			wantSmall string // the path of the small gather
			wantLarge string
		}{
			{choice: symmem.PathDefault, wantSmall: "plain", wantLarge: "plain"}, // the same path for both
			{choice: symmem.PathPlain, wantSmall: "plain", wantLarge: "plain"},
			{choice: symmem.PathDirect, wantSmall: "direct", wantLarge: "plain"}, // direct if possible
		} {
			call := gather(smallBytes)
			call.Path = row.choice
			call.More = []symmem.Call{gather(largeBytes)}
			paths, err := symmem.ListPaths(g, call)
			r.ok(err)
			want := []string{row.wantSmall, row.wantLarge}
			if !slices.Equal(paths, want) {
				r.failf("paths of a list with path %v = %v, want %v", row.choice, paths, want)
			}

			call.More[0].Path = symmem.PathWindow
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}
	})
}

// TestLongListsThatDifferAtTheEndDiverge makes a list of 52 calls, of which the last one has
// another count on each rank. The error must show the number of calls and a digest instead of all
// calls.
func TestLongListsThatDifferAtTheEndDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		m := r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: m, Recv: m, Wait: true,
		}
		last := call
		last.Count = 5 + int64(r.Rank()) // 5 on rank 0, 6 on rank 1
		call.More = append(slices.Repeat([]symmem.Call{call}, 50), last)
		err := r.Interop().Do(r.ctx, r.World(), call, nil)
		d := r.wantDivergence(err)
		if want := "(52 calls, digest "; !strings.Contains(d.Error(), want) {
			r.failf("got the error %q, want one that contains %q", d, want)
		}
	})
}
