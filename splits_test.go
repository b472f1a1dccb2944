package symmem_test

import (
	"errors"
	"slices"
	"testing"

	"symmem"
)

// rows returns counts[to] numbers for each rank to. Each number encodes from and to.
func rows(from int, counts []int64) (all []int32) {
	for to, n := range counts {
		for i := range n {
			all = append(all, int32(from)<<20|int32(to)<<16|int32(i))
		}
	}
	return all
}

// uneven returns the number of elements that one rank sends to another.
func uneven(from, to, round int) int64 { return int64((from*5 + to*3 + round*7) % 11 * 100) }

func TestSplits(t *testing.T) {
	runRanks(t, 3, symmem.Options{Path: symmem.PathPlain}, func(r *rank) {
		g, s, n := r.World(), r.DefaultStream(), r.Size()
		send, recv := r.unregistered(4096*4), r.unregistered(4096*4)
		for round := range 5 {
			sends, recvs := make([]int64, n), make([]int64, n)
			var want []int32
			for peer := range n {
				sends[peer], recvs[peer] = uneven(r.Rank(), peer, round), uneven(peer, r.Rank(), round)
			}
			for peer := range n {
				counts := make([]int64, n)
				counts[r.Rank()] = recvs[peer]
				want = append(want, rows(peer, counts)...)
			}
			write(r, send, slices.Concat(rows(r.Rank(), sends), make([]int32, 4096))[:4096])
			splits := symmem.Contiguous(sends, recvs)
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
		counts, x, y := []int64{1, 1, 1}, r.unregistered(64), r.unregistered(64)
		splits := symmem.Contiguous(counts, slices.Clone(counts))
		if r.Rank() == 2 {
			splits.RecvCounts[0] = 2
		}
		err := r.World().AllToAllV(r.ctx, x, y, splits, symmem.Int32, nil)
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
