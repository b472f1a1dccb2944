package symmem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/internal/cuda"
)

// If ranks make different calls, they get a DivergenceError. Each of its Sides is a call and the
// ranks that made it.

// A divergence of a subgroup lists world ranks. The text also gives the ranks in the subgroup.
func TestSubgroupDivergenceNamesWorldRanks(t *testing.T) {
	options := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 3, options, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return // alone in its group
		}

		m := r.alloc(r.pool(), 4096).Memory()
		const root = 1                 // world rank 2
		count := int64(100 + r.Rank()) // 100 on rank 0, 102 on rank 2
		callErr := g.Broadcast(r.ctx, m, m, count, symmem.Int8, root, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx)
		d := r.wantDivergence(errors.Join(callErr, syncErr))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "Broadcast of 100 int8, root 1 of the group, path plain, collective 1"},
			{Ranks: []int{2}, Event: "Broadcast of 102 int8, root 1 of the group, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}

		wantText := fmt.Sprintf("group %s: ranks call different collectives: world rank 0 has %q; "+
			"world rank 2 (rank 1 of the group) has %q", g.ID(), want[0].Event, want[1].Event)
		if d.Error() != wantText {
			r.failf("got %q, want %q", d, wantText)
		}

		if d.Kind != symmem.DivergedCollective {
			r.failf("Kind = %v, want %v", d.Kind, symmem.DivergedCollective)
		}
	})
}

// Ranks diverge if they launch different graphs, even if the graphs contain equal calls.
func TestGraphLaunchOrderDiverges(t *testing.T) {
	options := checkEvery
	options.Timeout = time.Minute
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			runWithFault(t, ranks, options, func(r *rank) {
				send := r.alloc(r.pool(), 4096).Memory()
				recv := r.alloc(r.pool(), 4096).Memory()
				first := captureTwoSums(r, send, recv)
				second := captureTwoSums(r, send, recv)
				launched := first
				isLastRank := r.Rank() == ranks-1
				if isLastRank {
					launched = second
				}

				begin := time.Now()
				launchErr := launched.Launch(r.DefaultStream())
				syncErr := r.DefaultStream().Synchronize(r.ctx)
				d := r.wantDivergence(errors.Join(launchErr, syncErr))
				limit := options.Timeout / 2 // exceeded after a timeout
				if elapsed := time.Since(begin); elapsed > limit {
					r.failf("the divergence was reported after %v, want at most %v", elapsed, limit)
				}

				checkSidesOfCaptures(r, d)
				r.ok(first.Close())
				r.ok(second.Close())
			})
		})
	}
}

func captureTwoSums(r *rank, send, recv symmem.Memory) *symmem.Graph {
	r.t.Helper()
	const count = 1000
	return r.capture(func(s *symmem.Stream) {
		for range 2 {
			r.ok(r.World().AllReduce(r.ctx, send, recv, count, symmem.Float32, symmem.Sum, s))
		}
	})
}

func checkSidesOfCaptures(r *rank, d *symmem.DivergenceError) {
	r.t.Helper()
	if len(d.Sides) != 2 {
		r.failf("Sides = %v, want 2 sides", d.Sides)
	}

	for i, want := range []string{"call 1 of capture 1", "call 1 of capture 2"} {
		if !strings.Contains(d.Sides[i].Event, want) {
			r.failf("Sides = %v, want %q in side %d", d.Sides, want, i)
		}
	}
}

// The error names the pool by its number in the group and the members by their world ranks.
func TestSubgroupDivergenceNamesPool(t *testing.T) {
	runWithFault(t, 3, checkEvery, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return // alone in its group
		}

		r.poolWith(symmem.PoolOptions{Domain: g})      // pool 0
		p := r.poolWith(symmem.PoolOptions{Domain: g}) // pool 1
		bytesByRank := map[int]int64{0: 512, 2: 1536}
		r.alloc(p, bytesByRank[r.Rank()])
		d := r.wantDivergence(g.Check(r.ctx))
		want := "pool 1 of group " + g.ID()
		if d.Pool != want || !strings.Contains(d.Error(), want) {
			r.failf("Pool = %q in the error %q, want %q in both", d.Pool, d, want)
		}

		if diff := cmp.Diff([]int{0, 2}, d.Members); diff != "" {
			r.failf("the members differ (-want +got):\n%s", diff)
		}
	})
}

// The internal ID of a joined group begins with a space. ID and error texts omit the space.
func TestJoinedGroupIDHasNoSpace(t *testing.T) {
	runWithFault(t, 2, checkEvery, func(r *rank) {
		const id = "joined"
		g, err := r.Join(r.ctx, id, []int{1, 0})
		r.ok(err)
		if g.ID() != id {
			r.failf("ID = %q, want %q", g.ID(), id)
		}

		g.Abort()
		err = g.Check(r.ctx)
		wantPrefix := "group " + id + ": "
		if err == nil || !strings.HasPrefix(err.Error(), wantPrefix) {
			r.failf("got error %v, want one that begins with %q", err, wantPrefix)
		}
	})
}

// If a pool maps less memory on one rank, the error suggests that a device has less memory.
func TestDivergenceMentionsSmallerDevice(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		segmentByRank := []int64{64 * mib, 32 * mib}
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: segmentByRank[r.Rank()],
		})
		r.alloc(p, mib)
		d := r.wantDivergence(p.Register(r.ctx, r.World()))
		const wantWhy = "different size"
		if d.Why != wantWhy {
			r.failf("Why = %q, want %q", d.Why, wantWhy)
		}

		const advice = "a device has less memory"
		if !strings.Contains(d.Error(), advice) {
			r.failf("got error %q, want one with %q", d, advice)
		}
	})
}

func TestDivergenceJSONRoundTrip(t *testing.T) {
	want := &symmem.DivergenceError{ // sets every field
		Group:    "world/1.0",
		Members:  []int{0, 2},
		Kind:     symmem.DivergedPlacement,
		Pool:     "pool 0 of group world/1.0",
		PoolID:   1 << 63, // does not fit into an int64
		Position: 4,
		Last:     9,
		Sides: []symmem.Side{{
			Ranks: []int{2}, Event: "free 512 B (stream 0)", Site: "a.go:7", Before: []string{"earlier"},
		}},
		Others:  []int{5},
		Deviant: []int{2},
		Absent:  []int{7},
		Why:     "extra event",
		Message: "all",
	}
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}

	var got symmem.DivergenceError
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(want, &got); diff != "" {
		t.Fatalf("the decoded error differs (-want +got):\n%s", diff)
	}

	if side := got.Ranks()[2]; side.Site != want.Sides[0].Site {
		t.Errorf("Ranks()[2] = %+v, want site %s", side, want.Sides[0].Site)
	}
}

func TestOutOfMemoryErrorsMatchErrOutOfMemory(t *testing.T) {
	for name, err := range map[string]error{
		"pool": &symmem.OutOfMemoryError{Requested: 1},
		"CUDA": fmt.Errorf("launching: %w", &cuda.Error{Code: cuda.ErrOutOfMemory}),
	} {
		if !errors.Is(err, symmem.ErrOutOfMemory) {
			t.Errorf("%s: errors.Is(%v, ErrOutOfMemory) = false, want true", name, err)
		}
	}

	if errors.Is(cuda.ErrNotReady, symmem.ErrOutOfMemory) {
		t.Error("errors.Is(cuda.ErrNotReady, ErrOutOfMemory) = true, want false")
	}
}
