package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// newListCall returns a list of three calls with parts of the sizes in u, and a function that
// checks their results.
func newListCall(u *unevenCall) (call symmem.Call, check func()) {
	me, n := u.Rank(), u.counts[0]+1 // n is at least 1
	sum := u.allocateFilled(u.part(0, 0, n))
	gathered := u.joinParts(func(r int) []int32 { return u.part(r, 0, u.counts[r]) })
	whole := u.allocateFilled(make([]int32, len(gathered)))
	parts := u.allocateFilled(u.joinParts(func(r int) []int32 { return u.part(me, r, n) }))
	own := u.allocateFilled(make([]int32, n))
	call = symmem.Call{
		Operation: symmem.OpAllReduce, Type: symmem.Int32, Op: symmem.Sum, Count: n,
		Send: sum, Recv: sum,
		More: []symmem.Call{{
			Operation: symmem.OpAllGatherV, Type: symmem.Int32, Recv: whole,
			Send:   u.allocateFilled(u.part(me, 0, u.counts[me])),
			Splits: &symmem.Splits{RecvCounts: u.counts},
		}, {
			Operation: symmem.OpReduceScatter, Type: symmem.Int32, Op: symmem.Max, Count: n,
			Send: parts, Recv: own,
		}},
	}
	return call, func() {
		want := u.part(0, 0, n)
		for i := range want {
			want[i] *= int32(u.Size())
		}
		u.check("AllReduce", sum, want)
		u.check("AllGatherV", whole, gathered)
		u.check("ReduceScatter", own, u.part(u.Size()-1, me, n))
	}
}

// TestListOfCalls makes random lists on memory inside and outside windows.
func TestListOfCalls(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runRanks(t, 3, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		pools := []*symmem.Pool{r.pool(), r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})}
		for range 10 {
			maxCount := []int{4, 100, 3000, 100_000}[draw.IntN(4)]
			n := int64(draw.IntN(maxCount))
			u := unevenCall{rank: r, pool: pools[draw.IntN(2)], counts: []int64{n, n, n}}
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

func TestCapturedListOfCalls(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), 4096)
		firstHalf, err := b.Memory().Slice(0, 2048)
		r.ok(err)
		secondHalf, err := b.Memory().Slice(2048, 2048)
		r.ok(err)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Count: 512, Send: firstHalf,
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
			r.checkAll(b, 3)
		}
		r.ok(g.Close())
	})
}

func TestDifferentListsDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		x, y := r.unregistered(64), r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: x, Recv: x, Wait: true,
		}
		next := call
		next.Send, next.Recv, next.Count = y, y, 5+int64(r.Rank())
		call.More = []symmem.Call{next}
		interop := r.Interop().At(r.Interop().Site("model.py:7"))
		d := r.wantDivergence(interop.Do(r.ctx, r.World(), call, nil))
		for _, want := range []string{
			"AllReduce sum of 5 int32", "AllReduce sum of 6 int32", "model.py:7",
		} {
			if !strings.Contains(d.Error(), want) {
				r.failf("got the error %q, want one that contains %q", d, want)
			}
		}
	})
}

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
			"a message": message, "a negative count": negative, "a nested list": nested,
		} {
			call := sum
			call.More = []symmem.Call{next}
			err := r.Interop().Do(r.ctx, r.World(), call, nil)
			if !errors.Is(err, symmem.ErrInvalid) {
				r.failf("%s in a list: got %v, want ErrInvalid", name, err)
			}
		}
		r.ok(r.Interop().Do(r.ctx, r.World(), sum, nil)) // nothing was queued
		r.synchronize()
	})
}

// TestPathOfListIsKept makes lists of a small gather, which can take the direct path, and a large
// gather, which cannot. The path of the list must apply to its calls.
func TestPathOfListIsKept(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		g := symmem.WithChecks(r.World(), nil, checkSmallExchange)
		gather := func(bytes int64) symmem.Call {
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
			want   []string
		}{
			{symmem.PathDefault, []string{"plain", "plain"}}, // all calls take the path of the large one
			{symmem.PathPlain, []string{"plain", "plain"}},
			{symmem.PathDirect, []string{"direct", "plain"}},
		} {
			call := gather(1 << 10)
			call.Path, call.More = row.choice, []symmem.Call{gather(32 << 10)}
			if paths, err := symmem.ListPaths(g, call); err != nil || !slices.Equal(paths, row.want) {
				r.failf("paths of a list with path %v = %v, %v, want %v", row.choice, paths, err, row.want)
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
