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

// TestSubgroupDivergenceNamesWorldRanks calls a collective with different counts in a group of
// world ranks 0 and 2.
func TestSubgroupDivergenceNamesWorldRanks(t *testing.T) {
	checkPlain := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 3, checkPlain, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return
		}
		b := r.alloc(r.pool(), 4096).Memory()
		const root = 1 // rank 2 of the world
		count := int64(100 + r.Rank())
		err := g.Broadcast(r.ctx, b, b, count, symmem.Int8, root, nil)
		d := r.wantDivergence(errors.Join(err, r.DefaultStream().Synchronize(r.ctx)))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "Broadcast of 100 int8, root 1 of the group, path plain, collective 1"},
			{Ranks: []int{2}, Event: "Broadcast of 102 int8, root 1 of the group, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}
		text := fmt.Sprintf("group %s: ranks call different collectives: world rank 0 has %q; "+
			"world rank 2 (rank 1 of the group) has %q", g.ID(), want[0].Event, want[1].Event)
		if d.Error() != text || d.Kind != symmem.DivergedCollective {
			r.failf("got %q, want %q", d, text)
		}
	})
}

// TestGraphLaunchOrderDiverges captures two graphs with the same calls, and launches the second
// graph on the last rank while the other ranks launch the first. The calls differ only in the
// number of their capture.
func TestGraphLaunchOrderDiverges(t *testing.T) {
	options := checkEvery
	options.Timeout = time.Minute // a divergence must be reported long before
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			runWithFault(t, ranks, options, func(r *rank) {
				send, recv := r.alloc(r.pool(), 4096), r.alloc(r.pool(), 4096)
				graphs := make([]*symmem.Graph, 2)
				for i := range graphs {
					graphs[i] = r.capture(func(s *symmem.Stream) {
						for range 2 {
							r.ok(r.World().AllReduce(r.ctx, send.Memory(), recv.Memory(), 1000, symmem.Float32,
								symmem.Sum, s))
						}
					})
				}
				firstGraph := 0
				if r.Rank() == ranks-1 {
					firstGraph = 1
				}
				begin := time.Now()
				err := graphs[firstGraph].Launch(r.DefaultStream())
				d := r.wantDivergence(errors.Join(err, r.DefaultStream().Synchronize(r.ctx)))
				if elapsed := time.Since(begin); elapsed > options.Timeout/2 {
					r.failf("the divergence was reported after %v, want at most %v", elapsed,
						options.Timeout/2)
				}
				for i, want := range []string{"call 1 of capture 1", "call 1 of capture 2"} {
					if len(d.Sides) != 2 || !strings.Contains(d.Sides[i].Event, want) {
						r.failf("Sides = %v, want %q in side %d", d.Sides, want, i)
					}
				}
				for _, g := range graphs {
					r.ok(g.Close())
				}
			})
		})
	}
}

func TestSubgroupDivergenceNamesPool(t *testing.T) {
	runWithFault(t, 3, checkEvery, func(r *rank) {
		g := r.split(r.World(), r.Rank()%2)
		if r.Rank() == 1 {
			return
		}
		r.poolWith(symmem.PoolOptions{Domain: g}) // pool 0
		p := r.poolWith(symmem.PoolOptions{Domain: g})
		r.alloc(p, int64(512*(1+r.Rank())))
		d := r.wantDivergence(g.Check(r.ctx))
		if want := "pool 1 of group " + g.ID(); d.Pool != want || !strings.Contains(d.Error(), want) {
			r.failf("Pool = %q in the error %q, want %q in both", d.Pool, d, want)
		}
		if diff := cmp.Diff([]int{0, 2}, d.Members); diff != "" {
			r.failf("the members differ (-want +got):\n%s", diff)
		}
	})
}

func TestJoinedGroupIDHasNoSpace(t *testing.T) {
	runWithFault(t, 2, checkEvery, func(r *rank) {
		g, err := r.Join(r.ctx, "jj", []int{1, 0})
		r.ok(err)
		g.Abort()
		if err := g.Check(r.ctx); g.ID() != "jj" || !strings.HasPrefix(err.Error(), "group jj: ") {
			r.failf("ID = %q, error %q; want jj in both", g.ID(), err)
		}
	})
}

// TestDivergenceMentionsSmallerDevice makes rank 1 map a smaller segment, as if its device were
// nearly full.
func TestDivergenceMentionsSmallerDevice(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		firstSegment := 64 * mib >> r.Rank()
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: firstSegment})
		r.alloc(p, mib)
		d := r.wantDivergence(p.Register(r.ctx, r.World()))
		if !strings.Contains(d.Error(), "a device has less memory") || d.Why != "different size" {
			r.failf("got %v, want advice about a device with less memory", d)
		}
	})
}

func TestDivergenceJSONRoundTrip(t *testing.T) {
	want := &symmem.DivergenceError{
		Group: "world/1.0", Members: []int{0, 2}, Kind: symmem.DivergedPlacement,
		Pool: "pool 0 of group world/1.0", PoolID: 1 << 63, Position: 4, Last: 9,
		Sides:  []symmem.Side{{Ranks: []int{2}, Event: "free 512 B (stream 0)", Site: "a.go:7"}},
		Others: []int{5}, Deviant: []int{2}, Absent: []int{7}, Why: "extra event", Message: "all",
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
	if side := got.Ranks()[2]; side.Site != "a.go:7" {
		t.Errorf("Ranks()[2] = %+v, want site a.go:7", side)
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
