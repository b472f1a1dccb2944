package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// newListCall returns a list of three calls that run as one: an all-reduce, a gather and a
// reduce-scatter. In the gather, rank r contributes u.counts[r] elements. check fails the test
// unless all results are right.
//
// u.part(src, dst, n) returns n numbers from rank src for rank dst, which increase with src.
func newListCall(u *unevenCall) (call symmem.Call, check func()) {
	me, n := u.Rank(), u.counts[0]+1         // n is at least 1, even if the gather is empty
	sum := u.allocateFilled(u.part(0, 0, n)) // the same numbers on all ranks
	contribution := u.allocateFilled(u.part(me, 0, u.counts[me]))
	wantGathered := u.joinParts(func(src int) []int32 { return u.part(src, 0, u.counts[src]) })
	gathered := u.allocateFilled(make([]int32, len(wantGathered)))
	scattered := u.allocateFilled(
		u.joinParts(func(dst int) []int32 { return u.part(me, dst, n) }))
	maxima := u.allocateFilled(make([]int32, n))
	gather := symmem.Call{
		Operation: symmem.OpAllGatherV, Type: symmem.Int32, Send: contribution, Recv: gathered,
		Splits: &symmem.Splits{RecvCounts: u.counts},
	}
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

// TestListOfCalls makes random lists on memory inside and outside windows (registered memory). With
// call.Wait, Do must return only when the results are complete.
func TestListOfCalls(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runRanks(t, 3, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		inDomain := r.pool()                   // calls register its memory with the world
		noDomain := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		pools := []*symmem.Pool{inDomain, noDomain}
		for range 10 {
			limits := []int{4, 100, 3000, 100_000} // of counts, so that small ones are frequent
			n := int64(draw.IntN(limits[draw.IntN(len(limits))]))
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

// TestCapturedListOfCalls captures a list and replays it. Its two sums cover the halves of a
// buffer.
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
		next.Send, next.Recv = secondHalf, secondHalf
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

// TestDifferentListsDiverge makes lists whose second calls have different counts. The error must
// show both calls and the call site.
func TestDifferentListsDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		x, y := r.unregistered(64), r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: x, Recv: x, Wait: true,
		}
		next := call
		next.Send, next.Recv = y, y
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

// TestInvalidListsAreRefused adds a call to a list that a list cannot contain. The first call of
// the list is valid, but must not be made either.
func TestInvalidListsAreRefused(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		m := r.unregistered(64)
		sum := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: m, Recv: m,
		}
		message, negative, nested := sum, sum, sum
		message.Operation, message.Root = symmem.OpSend, 1-r.Rank()
		negative.Count = -1
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

		// The refused lists have queued nothing that would disturb a later call.
		r.ok(r.Interop().Do(r.ctx, r.World(), sum, nil))
		r.synchronize()
	})
}

// TestPathOfListIsKept makes lists of a small gather, which can take the direct path, and a large
// gather, which cannot. The path of the list must apply to its calls. A call in a list must not
// have a path that differs from the list's.
func TestPathOfListIsKept(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		// The direct path has little memory for exchanging data.
		g := symmem.WithChecks(r.World(), nil, checkSmallExchange)
		const smallBytes, largeBytes = 1 << 10, 32 << 10
		gather := func(bytes int64) symmem.Call { // each rank contributes the bytes
			recv := r.unregistered(2 * bytes)
			send, err := recv.Slice(int64(r.Rank())*bytes, bytes)
			r.ok(err)
			return symmem.Call{
				Operation: symmem.OpAllGatherV, Type: symmem.Uint8, Send: send, Recv: recv,
				Splits: &symmem.Splits{RecvCounts: []int64{bytes, bytes}},
			}
		}
		for _, row := range []struct {
			choice symmem.PathChoice
			want   []string // the paths of the small and the large gather
		}{
			{symmem.PathDefault, []string{"plain", "plain"}}, // both take the path of the large one
			{symmem.PathPlain, []string{"plain", "plain"}},
			{symmem.PathDirect, []string{"direct", "plain"}}, // each that can takes the direct path
		} {
			call := gather(smallBytes)
			call.Path, call.More = row.choice, []symmem.Call{gather(largeBytes)}
			paths, err := symmem.ListPaths(g, call)
			r.ok(err)
			if !slices.Equal(paths, row.want) {
				r.failf("paths of a list with path %v = %v, want %v", row.choice, paths, row.want)
			}

			call.More[0].Path = symmem.PathWindow
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}
	})
}

// TestLongListsThatDifferAtTheEndDiverge checks that the error names the operation although the
// ranks do not exchange the whole text of the list.
func TestLongListsThatDifferAtTheEndDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		m := r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: m, Recv: m, Wait: true,
		}
		last := call
		last.Count = 5 + int64(r.Rank())
		call.More = append(slices.Repeat([]symmem.Call{call}, 50), last)
		d := r.wantDivergence(r.Interop().Do(r.ctx, r.World(), call, nil))
		if want := "(52 calls, digest "; !strings.Contains(d.Error(), want) {
			r.failf("got the error %q, want one that contains %q", d, want)
		}
	})
}
