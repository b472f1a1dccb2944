package symmem_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// A Call and the calls in its field More form a list, which a single Do runs.

// newListCall returns a list of three calls and a check of their results. In all calls,
// u.part(src, dst, n) returns the n numbers that rank src contributes to rank dst.
func newListCall(u *unevenCall) (call symmem.Call, check func()) {
	n := u.counts[0] + 1 // at least 1
	sum, checkSum := newListSum(u, n)
	gather, checkGather := newListGather(u)
	maxima, checkMaxima := newListMaxima(u, n)
	call = sum
	call.More = []symmem.Call{gather, maxima}
	return call, func() {
		checkSum()
		checkGather()
		checkMaxima()
	}
}

// newListSum returns an all-reduce in place, to which all ranks contribute equal numbers.
func newListSum(u *unevenCall, n int64) (call symmem.Call, check func()) {
	memory := u.allocateFilled(u.part(0, 0, n))
	call = symmem.Call{
		Operation: symmem.OpAllReduce, Type: symmem.Int32, Op: symmem.Sum, Count: n,
		Send: memory, Recv: memory,
	}
	return call, func() {
		want := u.part(0, 0, n)
		for i := range want {
			want[i] *= int32(u.Size())
		}

		u.check("AllReduce", memory, want)
	}
}

// newListGather returns a gather of counts[r] numbers from each rank r.
func newListGather(u *unevenCall) (call symmem.Call, check func()) {
	me := u.Rank()
	contribution := u.allocateFilled(u.part(me, 0, u.counts[me]))
	want := u.joinParts(func(src int) []int32 { return u.part(src, 0, u.counts[src]) })
	gathered := u.allocateFilled(make([]int32, len(want)))
	call = symmem.Call{
		Operation: symmem.OpAllGatherV, Type: symmem.Int32, Send: contribution, Recv: gathered,
		Splits: &symmem.Splits{RecvCounts: u.counts},
	}
	return call, func() { u.check("AllGatherV", gathered, want) }
}

func newListMaxima(u *unevenCall, n int64) (call symmem.Call, check func()) {
	me := u.Rank()
	contribution := u.allocateFilled(
		u.joinParts(func(dst int) []int32 { return u.part(me, dst, n) }))
	maxima := u.allocateFilled(make([]int32, n))
	call = symmem.Call{
		Operation: symmem.OpReduceScatter, Type: symmem.Int32, Op: symmem.Max, Count: n,
		Send: contribution, Recv: maxima,
	}
	return call, func() {
		lastRank := u.Size() - 1 // contributes the largest numbers
		u.check("ReduceScatter", maxima, u.part(lastRank, me, n))
	}
}

func TestListOfCalls(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runRanks(t, 3, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		registered := r.pool()
		unregistered := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		pools := []*symmem.Pool{registered, unregistered}
		const lists = 10
		for range lists {
			limits := []int{4, 100, 3000, 100_000} // arbitrary, for many small counts
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

func TestCapturedListOfCalls(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const half = 2048 // bytes
		const elementBytes = 4
		b := r.window(r.pool(), 2*half)
		firstHalf, err := b.Memory().Slice(0, half)
		r.ok(err)
		secondHalf, err := b.Memory().Slice(half, half)
		r.ok(err)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Count: half / elementBytes,
			Send: firstHalf, Recv: firstHalf,
		}
		next := call
		next.Send = secondHalf
		next.Recv = secondHalf
		call.More = []symmem.Call{next}
		r.ok(r.DefaultStream().BeginCapture())
		r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
		graph, err := r.DefaultStream().EndCapture()
		r.ok(err)
		const replays = 3
		for range replays {
			r.fill(b, float32(1+r.Rank()))
			r.ok(graph.Launch(r.DefaultStream()))
			r.checkAll(b, 1+2) // the values of ranks 0 and 1
		}

		r.ok(graph.Close())
	})
}

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
		next.Count = 5 + int64(r.Rank()) // differs between the ranks
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

		// The next call succeeds, because the refused lists have queued no call.
		r.ok(r.Interop().Do(r.ctx, r.World(), sum, nil))
		r.synchronize()
	})
}

// The Path of the first call applies to the whole list. checkSmallExchange permits the direct path
// only for the small gather.
func TestPathOfListIsKept(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		var noWindowCheck func(*driver.Call) error // keeps the limits of the window path
		g := symmem.WithChecks(r.World(), noWindowCheck, checkSmallExchange)
		const smallBytes, largeBytes = 1 << 10, 32 << 10
		gather := func(bytesPerRank int64) symmem.Call {
			recv := r.unregistered(2 * bytesPerRank)
			send, err := recv.Slice(int64(r.Rank())*bytesPerRank, bytesPerRank)
			r.ok(err)
			return symmem.Call{
				Operation: symmem.OpAllGatherV, Type: symmem.Uint8, Send: send, Recv: recv,
				Splits: &symmem.Splits{RecvCounts: []int64{bytesPerRank, bytesPerRank}},
			}
		}
		// PathDefault depends on the largest call. PathDirect applies only to calls that support it.
		for _, row := range []struct {
			choice    symmem.PathChoice
			wantSmall string
			wantLarge string
		}{
			{choice: symmem.PathDefault, wantSmall: "plain", wantLarge: "plain"},
			{choice: symmem.PathPlain, wantSmall: "plain", wantLarge: "plain"},
			{choice: symmem.PathDirect, wantSmall: "direct", wantLarge: "plain"},
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

			call.More[0].Path = symmem.PathWindow // which only the first call may set
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}
	})
}

func TestLongListsThatDifferAtTheEndDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		m := r.unregistered(64)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Int32, Count: 4, Send: m, Recv: m, Wait: true,
		}
		last := call
		last.Count = 5 + int64(r.Rank()) // differs between the ranks
		const middleCalls = 50           // too many for the error to list
		call.More = append(slices.Repeat([]symmem.Call{call}, middleCalls), last)
		err := r.Interop().Do(r.ctx, r.World(), call, nil)
		d := r.wantDivergence(err)
		want := fmt.Sprintf("(%d calls, digest ", 1+middleCalls+1)
		if !strings.Contains(d.Error(), want) {
			r.failf("got the error %q, want one that contains %q", d, want)
		}
	})
}
