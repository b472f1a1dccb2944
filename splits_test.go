package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// numbersFrom returns the numbers that rank src sends: counts[dst] numbers for each rank dst, in
// the order of ranks. Each number encodes src, dst and its index in separate bits.
func numbersFrom(src int, counts []int64) (all []int32) {
	for dst, n := range counts {
		for i := range n {
			all = append(all, int32(src)<<20|int32(dst)<<16|int32(i))
		}
	}

	return all
}

// unevenCount returns the number of elements that src sends to dst in a round: a multiple of 100
// from 0 to 1000. The factors make it vary with each argument.
func unevenCount(src, dst, round int) int64 { return int64((src*5 + dst*3 + round*7) % 11 * 100) }

// TestSplits exchanges different numbers of elements between all ranks. In each round, the ranks
// must receive what their peers have sent to them, in the order of ranks.
func TestSplits(t *testing.T) {
	const capacity = 4096 // elements of a buffer, enough for 3 times 1000
	const elementBytes = 4
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		g, s, n := r.World(), r.DefaultStream(), r.Size()
		send, recv := r.unregistered(capacity*elementBytes), r.unregistered(capacity*elementBytes)
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

			sent := make([]int32, capacity) // padded with zeros to the size of send
			copy(sent, numbersFrom(r.Rank(), sendCounts))
			write(r, send, sent)
			splits := symmem.Contiguous(sendCounts, recvCounts)
			r.ok(g.AllToAllV(r.ctx, send, recv, splits, symmem.Int32, s))
			clear(splits.SendCounts) // the call must have copied them
			if got := read[int32](r, recv)[:len(want)]; !slices.Equal(got, want) {
				r.failf("round %d: got %v, want %v", round, got, want)
			}
		}
	})
}

// TestMismatchedSplitsDiverge makes rank 2 expect an element more from rank 0 than rank 0 sends.
// All ranks must get an error with both numbers.
func TestMismatchedSplitsDiverge(t *testing.T) {
	var errs [3]error // by rank
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain, Check: symmem.CheckEvery}, func(r *rank) {
		send, recv := r.unregistered(64), r.unregistered(64)
		counts := []int64{1, 1, 1}
		splits := symmem.Contiguous(counts, slices.Clone(counts))
		if r.Rank() == 2 {
			splits.RecvCounts[0] = 2
		}

		callErr := r.World().AllToAllV(r.ctx, send, recv, splits, symmem.Int32, nil)
		streamErr := r.DefaultStream().Synchronize(r.ctx)
		errs[r.Rank()] = errors.Join(callErr, streamErr) // either of them may report the fault
	})
	wantEnds := []symmem.MessageEnds{{From: 0, To: 2, Sent: 1, Received: 2}}
	for number, err := range errs {
		var e *symmem.MessageError
		if !errors.As(err, &e) {
			t.Errorf("rank %d: got %v, want a MessageError", number, err)
			continue
		}

		if e.Fault != symmem.SplitsDiffer || e.Number != 1 || !slices.Equal(e.Ends, wantEnds) {
			t.Errorf("rank %d: got %+v, want SplitsDiffer in exchange 1 with the ends %+v", number, e,
				wantEnds)
		}
	}
}

// TestUnevenAndRootedOperations runs collectives with random counts, which may be 0, and random
// roots. The largest counts need several steps of the exchange memory. To repeat a failure, use the
// logged seed.
func TestUnevenAndRootedOperations(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const rounds = 30
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		draw := rand.New(rand.NewPCG(seed, 1)) // draws the same numbers on all ranks
		pool := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		for range rounds {
			limits := []int{4, 100, 3000, 100_000} // of all counts in a round
			maxCount := limits[draw.IntN(len(limits))]
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

// unevenCall checks operations with the same counts and root on one rank. They all move or reduce
// parts: the numbers that one rank contributes to the result of another.
type unevenCall struct {
	*rank
	pool   *symmem.Pool
	counts []int64 // number of elements in the part of each rank
	root   int
}

// part returns the count numbers that src contributes to dst, which encode both ranks and the
// index. They increase with src, so that the last rank has the maximum.
func (u *unevenCall) part(src, dst int, count int64) []int32 {
	numbers := make([]int32, count)
	for i := range numbers {
		numbers[i] = int32(src+1)<<24 + int32(dst)<<20 + int32(i)
	}

	return numbers
}

// joinParts returns part(r) for all ranks r, in the order of ranks.
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

	const elementBytes = 4
	bytes := int64(len(numbers)) * elementBytes
	m, err := u.alloc(u.pool, bytes).Memory().Slice(0, bytes)
	u.ok(err)
	write(u.rank, m, numbers)
	return m
}

// check fails the test unless m, the result of the named call, contains the numbers want.
func (u *unevenCall) check(call string, m symmem.Memory, want []int32) {
	u.t.Helper()
	if len(want) == 0 {
		return // m is the zero Memory
	}

	if got := read[int32](u.rank, m); !slices.Equal(got, want) {
		u.failf("%s of counts %v, root %d = %v, want %v", call, u.counts, u.root, got, want)
	}
}

// toAll is the dst of parts that do not depend on their destination.
const toAll = 0

// checkAllGatherV gathers a part of each rank on all ranks.
func (u *unevenCall) checkAllGatherV() {
	me := u.Rank()
	want := u.joinParts(func(r int) []int32 { return u.part(r, toAll, u.counts[r]) })
	recv := u.allocateFilled(make([]int32, len(want)))
	send := u.allocateFilled(u.part(me, toAll, u.counts[me]))
	u.ok(u.World().AllGatherV(u.ctx, send, recv, u.counts, symmem.Int32, nil))
	u.synchronize()
	u.check("AllGatherV", recv, want)
}

// checkReduceScatterV computes the maximum of all ranks' parts for each rank.
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
		want = u.joinParts(func(r int) []int32 { return u.part(r, toAll, count) })
		whole = u.allocateFilled(make([]int32, len(want)))
	}

	own := u.allocateFilled(u.part(me, toAll, count))
	u.ok(u.World().Gather(u.ctx, own, whole, count, symmem.Int32, u.root, nil))
	u.synchronize()
	u.check("Gather", whole, want)
	back := u.allocateFilled(make([]int32, count))
	u.ok(u.World().Scatter(u.ctx, whole, back, count, symmem.Int32, u.root, nil))
	u.synchronize()
	u.check("Scatter", back, u.part(me, toAll, count))
}

// TestDifferentCountsDiverge gives the ranks different counts for the same call. The error must
// quote the counts of both.
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

// TestInvalidCountsAreRefused checks counts and a root that do not fit to two ranks, and a buffer
// that is too small for the counts.
func TestInvalidCountsAreRefused(t *testing.T) {
	const ranks = 2
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		g, send, recv := r.World(), r.unregistered(64), r.unregistered(64)
		for _, counts := range [][]int64{nil, {1}, {1, 1, 1}, {1, -1}} {
			err := g.AllGatherV(r.ctx, send, recv, counts, symmem.Int32, nil)
			if !errors.Is(err, symmem.ErrInvalid) {
				r.failf("AllGatherV of the counts %v: got %v, want ErrInvalid", counts, err)
			}

			err = g.ReduceScatterV(r.ctx, send, recv, counts, symmem.Int32, symmem.Sum, nil)
			if !errors.Is(err, symmem.ErrInvalid) {
				r.failf("ReduceScatterV of the counts %v: got %v, want ErrInvalid", counts, err)
			}
		}

		twoElements, err := recv.Slice(0, 8) // of the four elements that AllGatherV needs
		r.ok(err)
		err = g.AllGatherV(r.ctx, send, twoElements, []int64{2, 2}, symmem.Int32, nil)
		r.wantErr(err, symmem.ErrOutOfRange)
		const count, noRank = 1, ranks
		r.wantErr(g.Gather(r.ctx, send, recv, count, symmem.Int32, noRank, nil), symmem.ErrInvalid)
	})
}
