package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

// TestSplitOrdersRanksByKey splits the world into the even and the odd ranks, in descending order.
// Sums must work in these groups, in a group of one rank, and still in the world.
func TestSplitOrdersRanksByKey(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		color, key := r.Rank()%2, -r.Rank()
		g, err := r.World().Split(r.ctx, color, key)
		r.ok(err)
		want := [][]int{{2, 0}, {3, 1}}[color] // world ranks in order of the ranks of the group
		if !slices.Equal(g.Ranks(), want) || g.Size() != len(want) {
			r.failf("got a group of %d ranks, %v; want %v", g.Size(), g.Ranks(), want)
		}

		if want[g.Rank()] != r.Rank() {
			r.failf("this rank is rank %d of the group %v", g.Rank(), want)
		}

		p := r.poolWith(symmem.PoolOptions{Domain: g, FirstSegment: 2 * mib})
		b := r.alloc(p, 4096)
		r.ok(p.Register(r.ctx, g))
		r.checkSum(g, b)
		singleRankGroup := r.split(g, g.Rank())
		r.checkSum(singleRankGroup, b)
		r.checkSum(r.World(), r.window(r.pool(), 4096))
	})
}

// TestSkipSplit makes rank 0 call SkipSplit while the others split the world. The new group must
// contain only the others. A negative color is not a way to skip.
func TestSkipSplit(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		const negativeColor, key = -1, 0
		_, err := r.World().Split(r.ctx, negativeColor, key)
		r.wantErr(err, symmem.ErrInvalid)
		if r.Rank() == 0 {
			r.ok(r.World().SkipSplit(r.ctx))
			return
		}

		g := r.split(r.World(), 0)
		if want := []int{1, 2}; !slices.Equal(g.Ranks(), want) {
			r.failf("got ranks %v, want %v", g.Ranks(), want)
		}
	})
}

// TestNewGroupRegistersExistingMemory sums a buffer in a new group. The first sum must register
// all segments of the pool with the group, as windows, and take the window path.
func TestNewGroupRegistersExistingMemory(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib) // a buffer in memory that is registered with the world
		r.alloc(p, 8*mib)     // a second segment, which the world has not registered
		half := r.split(r.World(), r.Rank()/2)
		if half.IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = true in a new group, want false")
		}

		r.checkSum(half, b)
		stats, segments := half.Stats(), p.Stats().Segments
		if stats.Windows != segments || stats.Paths["window"] != 1 {
			r.failf("got %+v, want %d windows and 1 call on the window path", stats, segments)
		}

		r.checkSum(r.World(), b)
		groups := r.Stats().Groups
		if len(groups) != 2 {
			r.failf("got the groups %+v, want the world and %s", groups, half.ID())
		}

		if n := groups[half.ID()].Windows; n != segments {
			r.failf("group %s has %d windows in Runtime.Stats, want %d", half.ID(), n, segments)
		}
	})
}

// TestRegisterNeedsGroupInsideDomain makes a pool whose domain is a group of this rank alone. The
// pool's memory cannot be registered with the world, which has more ranks.
func TestRegisterNeedsGroupInsideDomain(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		single := r.split(r.World(), r.Rank())
		p := r.poolWith(symmem.PoolOptions{Domain: single, FirstSegment: 2 * mib})
		b := r.alloc(p, 4096)
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrInvalid)
		// The world's collectives on this memory take the plain path.
		r.checkSum(r.World(), b)
		if paths := r.World().Stats().Paths; paths["plain"] != 1 {
			r.failf("Paths = %v, want 1 plain", paths)
		}
	})
}

func TestPoolRejectsGroupOfOtherRuntime(t *testing.T) {
	runtimes := openRanks(t, 2, symmem.Options{})
	_, err := runtimes[0].NewPool(symmem.PoolOptions{Domain: runtimes[1].World()})
	if !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}

	eachRank(runtimes, func(rt *symmem.Runtime) {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
}

// abortOnRank1 aborts the group on rank 1. It makes a call on all ranks, which must fail.
func abortOnRank1(r *rank, g *symmem.Group) {
	r.t.Helper()
	if r.Rank() == 1 {
		g.Abort()
	}

	const count = 4
	m := r.unregistered(4 * count)
	err := g.AllReduce(r.ctx, m, m, count, symmem.Int32, symmem.Sum, nil)
	syncErr := r.DefaultStream().Synchronize(r.ctx)
	r.wantErr(errors.Join(err, syncErr), symmem.ErrAborted)
}

// TestNewGroupReusesMemoryOfEndedGroup ends a group that has used a pool. Calls in the group must
// return the reason and its windows must be gone. The memory must be usable in a second group.
func TestNewGroupReusesMemoryOfEndedGroup(t *testing.T) {
	for _, row := range []struct {
		name string
		end  func(r *rank, g *symmem.Group)
		want error // of calls in the group after its end
	}{
		{
			name: "closed",
			end:  func(r *rank, g *symmem.Group) { r.ok(g.Close()) },
			want: symmem.ErrClosed,
		},
		{name: "aborted by one rank", end: abortOnRank1, want: symmem.ErrAborted},
	} {
		t.Run(row.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				first := r.split(r.World(), 0)
				p := r.pool()
				b := r.alloc(p, mib)
				r.checkSum(first, b)
				row.end(r, first)
				r.wantErr(first.Cause(r.ctx), row.want)
				_, err := first.Split(r.ctx, 0, 0)
				r.wantErr(err, row.want)
				r.wantErr(first.Check(r.ctx), row.want)
				r.wantErr(r.sum(first, b), row.want)
				r.ok(first.Close()) // succeeds, although the group has ended
				if n := first.Stats().Windows; n != 0 {
					r.failf("the group has %d windows, want 0", n)
				}

				if n := p.Stats().Windows; n != 0 {
					r.failf("the pool has %d windows, want 0", n)
				}

				second := r.split(r.World(), 0)
				if second.ID() == first.ID() {
					r.failf("both groups have ID %s, want different IDs", first.ID())
				}

				r.checkSum(second, b)
				r.checkSum(r.World(), b)
			})
		})
	}
}

// TestFaultDoesNotReachOtherGroups aborts a group. The world, which the group was split from, must
// still work.
func TestFaultDoesNotReachOtherGroups(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		aborted := r.split(r.World(), 0)
		b := r.window(r.pool(), mib)
		aborted.Abort()
		r.checkSum(r.World(), b)
		r.wantErr(aborted.Check(r.ctx), symmem.ErrAborted)
		r.ok(r.World().Cause(r.ctx)) // the world has no fault
	})
}

// TestIdleRankLearnsOfFault aborts a group on rank 1. The channel Ended must be closed on all
// ranks, even though they make no call. Ranks exchange the fault at every check level.
func TestIdleRankLearnsOfFault(t *testing.T) {
	for _, check := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckOff} {
		runRanks(t, 3, symmem.Options{Check: check}, func(r *rank) {
			g := r.split(r.World(), 0)
			if r.Rank() == 1 {
				g.Abort()
			}

			select {
			case <-g.Ended():
				r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
			case <-time.After(10 * time.Second): // normally much faster, also on a busy machine
				r.failf("check level %v: the group has not failed after 10s", check)
			}
		})
	}
}

// TestCancelEndsWait calls Check on rank 0 only, with a canceled context. Check must not wait for
// rank 1.
func TestCancelEndsWait(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Rank() == 1 {
			return // makes no call
		}

		canceled, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := r.World().Check(canceled); err == nil {
			r.failf("Check with a canceled context succeeded without rank 1, want an error")
		}
	})
}

// TestJoinWithDifferentRankLists makes the ranks pass different lists to Join, which then waits in
// vain until its timeout. The error of each rank must show this rank's list.
func TestJoinWithDifferentRankLists(t *testing.T) {
	t.Parallel()
	for name, listsByRank := range map[string][][]int{
		"different order":        {{0, 1, 2}, {1, 0, 2}, {0, 1, 2}},
		"shorter list on rank 0": {{0, 1}, {0, 1, 2}, {0, 1, 2}},
		"shorter list on rank 1": {{0, 1, 2}, {0, 1}, {0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runRanks(t, 3, symmem.Options{}, func(r *rank) {
				ownList := listsByRank[r.Rank()]
				// Within the timeout, all ranks must have called Join, even on a busy machine.
				err := r.withTimeout(5*time.Second, func(ctx context.Context) error {
					_, err := r.Join(ctx, "g", ownList)
					return err
				})
				r.wantErr(err, symmem.ErrInvalid)
				want := fmt.Sprintf("this rank passed %v", ownList)
				if !strings.Contains(err.Error(), want) {
					r.failf("got error %q, want one that contains %q", err, want)
				}
			})
		})
	}
}

// TestJoinRejectsUsedID joins a group twice with the same ID. The second call must fail, whether or
// not the first group is closed.
func TestJoinRejectsUsedID(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		for _, isClosed := range []bool{true, false} {
			id := fmt.Sprintf("closed %t", isClosed)
			g, err := r.Join(r.ctx, id, []int{0, 1})
			r.ok(err)
			if isClosed {
				r.ok(g.Close())
			}

			_, err = r.Join(r.ctx, id, []int{0, 1})
			r.wantErr(err, symmem.ErrInvalid)
			if want := "id was already used"; !strings.Contains(err.Error(), want) {
				r.failf("Join with the ID %q again: got error %q, want one with %q", id, err, want)
			}
		}
	})
}

// TestSplitGroupNamesAreReusable passes the ID of a split group to Join, while that group is live.
// Split chooses the IDs of its groups, so they must not limit the IDs of Join. All groups must
// work.
func TestSplitGroupNamesAreReusable(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		joined, err := r.Join(r.ctx, "a", []int{0, 1})
		r.ok(err)
		child := r.split(joined, 0)
		sameName, err := r.Join(r.ctx, child.ID(), []int{1, 0})
		r.ok(err)
		grandchild := r.split(sameName, 0)
		b := r.window(r.pool(), 4096)
		for _, g := range []*symmem.Group{child, sameName, grandchild} {
			r.checkSum(g, b)
		}
	})
}
