package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// numbersFrom returns the numbers that rank src sends: counts[dst] numbers for each rank dst, by
// rank. Each number encodes src and dst.
func numbersFrom(src int, counts []int64) (all []int32) {
	for dst, n := range counts {
		for i := range n {
			all = append(all, int32(src)<<20|int32(dst)<<16|int32(i))
		}
	}
	return all
}

// unevenCount returns the number of elements that src sends to dst in a round. It varies with each
// argument and is at most 1000.
func unevenCount(src, dst, round int) int64 { return int64((src*5 + dst*3 + round*7) % 11 * 100) }

func TestSplits(t *testing.T) {
	const capacity = 4096 // elements of a buffer
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		g, s, n := r.World(), r.DefaultStream(), r.Size()
		send, recv := r.unregistered(capacity*4), r.unregistered(capacity*4)
		for round := range 5 {
			sendCounts, recvCounts := make([]int64, n), make([]int64, n)
			for peer := range n {
				sendCounts[peer] = unevenCount(r.Rank(), peer, round)
				recvCounts[peer] = unevenCount(peer, r.Rank(), round)
			}
			var want []int32
			for peer := range n {
				fromPeer := make([]int64, n) // only what peer sends to this rank
				fromPeer[r.Rank()] = recvCounts[peer]
				want = append(want, numbersFrom(peer, fromPeer)...)
			}
			padding := make([]int32, capacity)
			write(r, send, append(numbersFrom(r.Rank(), sendCounts), padding...)[:capacity])
			splits := symmem.Contiguous(sendCounts, recvCounts)
			r.ok(g.AllToAllV(r.ctx, send, recv, splits, symmem.Int32, s))
			clear(splits.SendCounts) // the call must have copied them
			if got := read[int32](r, recv)[:len(want)]; !slices.Equal(got, want) {
				r.failf("round %d: got %v, want %v", round, got, want)
			}
		}
	})
}

func TestMismatchedSplitsDiverge(t *testing.T) {
	var errs [3]error
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain, Check: symmem.CheckEvery}, func(r *rank) {
		send, recv := r.unregistered(64), r.unregistered(64)
		counts := []int64{1, 1, 1}
		splits := symmem.Contiguous(counts, slices.Clone(counts))
		if r.Rank() == 2 {
			splits.RecvCounts[0] = 2
		}
		err := r.World().AllToAllV(r.ctx, send, recv, splits, symmem.Int32, nil)
		errs[r.Rank()] = errors.Join(err, r.DefaultStream().Synchronize(r.ctx))
	})
	for number, err := range errs {
		var e *symmem.MessageError
		if !errors.As(err, &e) || e.Fault != symmem.SplitsDiffer || e.Number != 1 ||
			!slices.Equal(e.Ends, []symmem.MessageEnds{{From: 0, To: 2, Sent: 1, Received: 2}}) {
			t.Errorf("rank %d: got %v, want a MessageError for 1 element sent and 2 expected", number, err)
		}
	}
}

func TestUnevenAndRootedOperations(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		pool := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		for range 30 {
			maxCount := []int{4, 100, 3000, 100_000}[draw.IntN(4)]
			counts := []int64{
				int64(draw.IntN(maxCount)), int64(draw.IntN(maxCount)), int64(draw.IntN(maxCount)),
			}
			u := unevenCall{rank: r, pool: pool, counts: counts, root: draw.IntN(3)}
			u.checkAllGatherV()
			u.checkReduceScatterV()
			u.checkRooted(counts[0])
		}
	})
}

// unevenCall checks operations on one rank.
type unevenCall struct {
	*rank
	pool   *symmem.Pool
	counts []int64 // number of elements in the part of each rank
	root   int
}

// part returns the numbers that src contributes to the part of dst. They increase with src.
func (u *unevenCall) part(src, dst int, count int64) []int32 {
	numbers := make([]int32, count)
	for i := range numbers {
		numbers[i] = int32(src+1)<<24 + int32(dst)<<20 + int32(i)
	}
	return numbers
}

func (u *unevenCall) joinParts(part func(r int) []int32) (all []int32) {
	for r := range u.counts {
		all = append(all, part(r)...)
	}
	return all
}

// allocateFilled returns memory that contains the numbers, or the zero Memory if there are none.
func (u *unevenCall) allocateFilled(numbers []int32) symmem.Memory {
	if len(numbers) == 0 {
		return symmem.Memory{}
	}
	bytes := int64(len(numbers)) * 4
	m, err := u.alloc(u.pool, bytes).Memory().Slice(0, bytes)
	u.ok(err)
	write(u.rank, m, numbers)
	return m
}

func (u *unevenCall) check(call string, m symmem.Memory, want []int32) {
	u.t.Helper()
	if len(want) == 0 {
		return // m is the zero Memory
	}
	if got := read[int32](u.rank, m); !slices.Equal(got, want) {
		u.failf("%s of counts %v, root %d = %v, want %v", call, u.counts, u.root, got, want)
	}
}

func (u *unevenCall) checkAllGatherV() {
	me := u.Rank()
	want := u.joinParts(func(r int) []int32 { return u.part(r, 0, u.counts[r]) })
	recv := u.allocateFilled(make([]int32, len(want)))
	send := u.allocateFilled(u.part(me, 0, u.counts[me]))
	u.ok(u.World().AllGatherV(u.ctx, send, recv, u.counts, symmem.Int32, nil))
	u.synchronize()
	u.check("AllGatherV", recv, want)
}

func (u *unevenCall) checkReduceScatterV() {
	me := u.Rank()
	send := u.allocateFilled(u.joinParts(func(r int) []int32 { return u.part(me, r, u.counts[r]) }))
	recv := u.allocateFilled(make([]int32, u.counts[me]))
	u.ok(u.World().ReduceScatterV(u.ctx, send, recv, u.counts, symmem.Int32, symmem.Max, nil))
	u.synchronize()
	lastRank := u.Size() - 1 // has contributed the largest numbers
	u.check("ReduceScatterV", recv, u.part(lastRank, me, u.counts[me]))
}

// checkRooted gathers count elements of each rank to the root and scatters them back.
func (u *unevenCall) checkRooted(count int64) {
	me := u.Rank()
	var whole symmem.Memory // only on the root
	var want []int32
	if me == u.root {
		want = u.joinParts(func(r int) []int32 { return u.part(r, 0, count) })
		whole = u.allocateFilled(make([]int32, len(want)))
	}
	own := u.allocateFilled(u.part(me, 0, count))
	u.ok(u.World().Gather(u.ctx, own, whole, count, symmem.Int32, u.root, nil))
	u.synchronize()
	u.check("Gather", whole, want)
	back := u.allocateFilled(make([]int32, count))
	u.ok(u.World().Scatter(u.ctx, whole, back, count, symmem.Int32, u.root, nil))
	u.synchronize()
	u.check("Scatter", back, u.part(me, 0, count))
}

func TestDifferentCountsDiverge(t *testing.T) {
	o := symmem.Options{Path: symmem.PathPlain, Check: symmem.CheckEvery}
	runRanks(t, 2, o, func(r *rank) {
		counts := []int64{2, 2} // elements from each rank
		if r.Rank() == 1 {
			counts = []int64{1, 2} // rank 1 expects fewer elements from rank 0
		}
		send, recv := r.unregistered(64), r.unregistered(64)
		err := r.World().AllGatherV(r.ctx, send, recv, counts, symmem.Int32, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}
		d := r.wantDivergence(err)
		for _, want := range []string{"counts 2 2", "counts 1 2"} {
			if !strings.Contains(d.Error(), want) {
				r.failf("got the error %q, want one that contains %q", d, want)
			}
		}
	})
}

func TestInvalidCountsAreRefused(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g, send, recv := r.World(), r.unregistered(64), r.unregistered(64)
		for _, counts := range [][]int64{nil, {1}, {1, 1, 1}, {1, -1}} {
			err := g.AllGatherV(r.ctx, send, recv, counts, symmem.Int32, nil)
			r.wantErr(err, symmem.ErrInvalid)
			err = g.ReduceScatterV(r.ctx, send, recv, counts, symmem.Int32, symmem.Sum, nil)
			r.wantErr(err, symmem.ErrInvalid)
		}
		twoElements, err := recv.Slice(0, 8)
		r.ok(err)
		err = g.AllGatherV(r.ctx, send, twoElements, []int64{2, 2}, symmem.Int32, nil)
		r.wantErr(err, symmem.ErrOutOfRange)
		const noRank = 2
		r.wantErr(g.Gather(r.ctx, send, recv, 1, symmem.Int32, noRank, nil), symmem.ErrInvalid)
	})
}
