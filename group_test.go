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

func TestSplitOrdersRanksByKey(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		color, key := r.Rank()%2, -r.Rank()
		g, err := r.World().Split(r.ctx, color, key)
		r.ok(err)
		want := [][]int{{2, 0}, {3, 1}}[color]
		if !slices.Equal(g.Ranks(), want) || g.Size() != 2 || want[g.Rank()] != r.Rank() {
			r.failf("got ranks %v, rank %d of %d; want ranks %v", g.Ranks(), g.Rank(), g.Size(), want)
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

func TestSkipSplit(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		_, err := r.World().Split(r.ctx, -1, 0)
		r.wantErr(err, symmem.ErrInvalid)
		color := 0
		if r.Rank() == 0 {
			color = -1
		}
		g := r.split(r.World(), color)
		if (g == nil) != (r.Rank() == 0) {
			r.failf("got group %v, want nil on rank 0 only", g)
		}
		if g != nil && !slices.Equal(g.Ranks(), []int{1, 2}) {
			r.failf("got ranks %v, want 1 and 2", g.Ranks())
		}
	})
}

func TestNewGroupRegistersExistingMemory(t *testing.T) {
	runRanks(t, 4, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.alloc(p, 8*mib) // a second segment, which the world has not registered
		half := r.split(r.World(), r.Rank()/2)
		if half.IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = true in a new group, want false")
		}
		r.checkSum(half, b)
		if n := half.Stats().Windows; n != p.Stats().Segments || half.Stats().Paths["window"] != 1 {
			r.failf("got %+v, want %d windows and 1 call on the window path", half.Stats(),
				p.Stats().Segments)
		}
		r.checkSum(r.World(), b)
		all := r.Stats().Groups
		if len(all) != 2 || all[half.ID()].Windows != half.Stats().Windows {
			r.failf("got the groups %+v, want the world and %s", all, half.ID())
		}
	})
}

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

func TestNewGroupReusesMemoryOfEndedGroup(t *testing.T) {
	for _, row := range []struct {
		name string
		end  func(r *rank, g *symmem.Group) error
		want error
	}{
		{"closed", func(_ *rank, g *symmem.Group) error { return g.Close() }, symmem.ErrClosed},
		{"aborted by one rank", func(r *rank, g *symmem.Group) error {
			if r.Rank() == 1 {
				g.Abort()
			}
			m := r.unregistered(16)
			err := errors.Join(g.AllReduce(r.ctx, m, m, 4, symmem.Int32, symmem.Sum, nil),
				r.DefaultStream().Synchronize(r.ctx))
			r.wantErr(err, symmem.ErrAborted)
			return nil
		}, symmem.ErrAborted},
	} {
		t.Run(row.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				first := r.split(r.World(), 0)
				p := r.pool()
				b := r.alloc(p, mib)
				r.checkSum(first, b)
				r.ok(row.end(r, first))
				r.wantErr(first.Cause(r.ctx), row.want)
				_, err := first.Split(r.ctx, 0, 0)
				r.wantErr(err, row.want)
				r.wantErr(first.Check(r.ctx), row.want)
				r.wantErr(r.sum(first, b), row.want)
				r.ok(first.Close())
				if n := first.Stats().Windows; n != 0 || p.Stats().Windows != 0 {
					r.failf("the group has %d windows and the pool %d, want 0", n, p.Stats().Windows)
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

// TestIdleRankLearnsOfFault checks that Ended is closed on ranks that make no call.
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
			case <-time.After(10 * time.Second):
				r.failf("the group has not failed after 10s")
			}
		})
	}
}

func TestCancelEndsWait(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Rank() == 1 {
			return // rank 0 waits in Check for this rank
		}
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := r.World().Check(ctx); err == nil {
			r.failf("Check with a cancelled context succeeded on one rank")
		}
	})
}

func TestJoinWithDifferentRankLists(t *testing.T) {
	t.Parallel()
	for name, lists := range map[string][][]int{
		"different order":        {{0, 1, 2}, {1, 0, 2}, {0, 1, 2}},
		"shorter list on rank 0": {{0, 1}, {0, 1, 2}, {0, 1, 2}},
		"shorter list on rank 1": {{0, 1, 2}, {0, 1}, {0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runRanks(t, 3, symmem.Options{}, func(r *rank) {
				err := r.withTimeout(5*time.Second, func(ctx context.Context) error {
					_, err := r.Join(ctx, "g", lists[r.Rank()])
					return err
				})
				r.wantErr(err, symmem.ErrInvalid)
				if !strings.Contains(err.Error(), fmt.Sprintf("this rank passed %v", lists[r.Rank()])) {
					r.failf("got error %q, want one that contains this rank's list %v", err, lists[r.Rank()])
				}
			})
		})
	}
}

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
			if !strings.Contains(err.Error(), "id was already used") {
				r.failf("got error %q, want one that says that the id was used", err)
			}
		}
	})
}

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
