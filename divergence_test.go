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

// Ranks diverge if they make different calls or different requests to a pool: for example, rank 0
// broadcasts 100 elements and rank 2 broadcasts 102. The ranks then get a DivergenceError. It has a
// side for each different call, which lists the ranks that made this call. These tests check what
// the error contains.
//
// runWithFault also checks that the ranks can create and use a new group after the error.

// TestSubgroupDivergenceNamesWorldRanks broadcasts different counts in a group of world ranks 0 and
// 2. The error must name the ranks of the world. World rank 2 has rank 1 in the group, so the error
// must also contain this number.
func TestSubgroupDivergenceNamesWorldRanks(t *testing.T) {
	checkPlain := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 3, checkPlain, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return // rank 1 of the world is alone in its group
		}

		m := r.alloc(r.pool(), 4096).Memory()
		const root = 1                 // the number of world rank 2 in the group
		count := int64(100 + r.Rank()) // 100 on rank 0, 102 on rank 2
		err := g.Broadcast(r.ctx, m, m, count, symmem.Int8, root, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx) // reports an error of the submitted call
		d := r.wantDivergence(errors.Join(err, syncErr))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "Broadcast of 100 int8, root 1 of the group, path plain, collective 1"},
			{Ranks: []int{2}, Event: "Broadcast of 102 int8, root 1 of the group, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}

		text := fmt.Sprintf("group %s: ranks call different collectives: world rank 0 has %q; "+
			"world rank 2 (rank 1 of the group) has %q", g.ID(), want[0].Event, want[1].Event)
		if d.Error() != text {
			r.failf("got %q, want %q", d, text)
		}

		if d.Kind != symmem.DivergedCollective {
			r.failf("Kind = %v, want %v", d.Kind, symmem.DivergedCollective)
		}
	})
}

// TestGraphLaunchOrderDiverges captures two graphs with equal calls. The last rank launches the
// second graph, and the other ranks launch the first. The ranks must diverge: the number of its
// capture distinguishes each call.
func TestGraphLaunchOrderDiverges(t *testing.T) {
	options := checkEvery
	options.Timeout = time.Minute // a divergence must be reported long before
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			runWithFault(t, ranks, options, func(r *rank) {
				send := r.alloc(r.pool(), 4096).Memory()
				recv := r.alloc(r.pool(), 4096).Memory()
				first := captureTwoSums(r, send, recv)
				second := captureTwoSums(r, send, recv)
				launched := first
				if lastRank := ranks - 1; r.Rank() == lastRank {
					launched = second
				}

				begin := time.Now()
				launchErr := launched.Launch(r.DefaultStream())
				syncErr := r.DefaultStream().Synchronize(r.ctx)
				d := r.wantDivergence(errors.Join(launchErr, syncErr))
				limit := options.Timeout / 2
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

// captureTwoSums captures two all-reduces.
func captureTwoSums(r *rank, send, recv symmem.Memory) *symmem.Graph {
	r.t.Helper()
	const count = 1000 // elements: 4000 of the 4096 bytes of each memory
	return r.capture(func(s *symmem.Stream) {
		for range 2 {
			r.ok(r.World().AllReduce(r.ctx, send, recv, count, symmem.Float32, symmem.Sum, s))
		}
	})
}

// checkSidesOfCaptures fails the test unless d has two sides, which name the first call of each
// capture.
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

// TestSubgroupDivergenceNamesPool requests different sizes from the second pool of a group of world
// ranks 0 and 2. The error must name this pool by its number in the group, which is 1, and the
// members by their world ranks.
func TestSubgroupDivergenceNamesPool(t *testing.T) {
	runWithFault(t, 3, checkEvery, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return // rank 1 of the world is alone in its group
		}

		r.poolWith(symmem.PoolOptions{Domain: g})      // pool 0
		p := r.poolWith(symmem.PoolOptions{Domain: g}) // pool 1
		r.alloc(p, int64(512*(1+r.Rank())))            // 512 bytes on rank 0, 1536 on rank 2
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

// TestJoinedGroupIDHasNoSpace joins a group with the ID "jj". Internally, symmem marks the IDs of
// joined groups with a space, as in " jj". Group.ID and errors must not contain this space.
func TestJoinedGroupIDHasNoSpace(t *testing.T) {
	runWithFault(t, 2, checkEvery, func(r *rank) {
		const id = "jj"
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

// TestDivergenceMentionsSmallerDevice maps a segment (a part of a pool's memory) of 64 MiB on rank
// 0 and of 32 MiB on rank 1, as if the device of rank 1 were nearly full. The error must mention
// this possible reason.
func TestDivergenceMentionsSmallerDevice(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		segmentByRank := []int64{64 * mib, 32 * mib}
		firstSegment := segmentByRank[r.Rank()]
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: firstSegment})
		r.alloc(p, mib)
		d := r.wantDivergence(p.Register(r.ctx, r.World()))
		if d.Why != "different size" {
			r.failf("Why = %q, want %q", d.Why, "different size")
		}

		const advice = "a device has less memory"
		if !strings.Contains(d.Error(), advice) {
			r.failf("got error %q, want one with %q", d, advice)
		}
	})
}

// TestDivergenceJSONRoundTrip encodes an error, in which no field has its zero value, as JSON and
// decodes it. The result must be equal.
func TestDivergenceJSONRoundTrip(t *testing.T) {
	want := &symmem.DivergenceError{
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

// TestOutOfMemoryErrorsMatchErrOutOfMemory checks errors of a pool and of CUDA that has no memory
// left. Both must match ErrOutOfMemory, and another error of CUDA must not.
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
