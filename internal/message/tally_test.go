package message

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestTallyCountsCallsBeforeCollective(t *testing.T) {
	var tally Tally
	for i, call := range []struct {
		key   Key
		after uint64
	}{{Key{1, 0}, 0}, {Key{1, 0}, 0}, {Key{1, 0}, 2}, {Key{Any, 5}, 2}} {
		want := [...]uint64{1, 2, 3, 1}[i]
		if got := tally.Count(call.key, call.after, 0); got != want {
			t.Errorf("call %d: Count = %d, want %d", i, got, want)
		}
	}

	for collective, want := range map[uint64]string{
		1: "[{{1 0} 2}]", 2: "[{{1 0} 2}]", 3: "[{{-1 5} 1} {{1 0} 3}]",
	} {
		if got := fmt.Sprint(tally.CallsBefore(collective)); got != want {
			t.Errorf("Before(%d) = %s, want %s", collective, got, want)
		}
	}
}

func TestPruningDoesNotChangeCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tally Tally
		var calls []uint64
		after, done := uint64(0), uint64(0)
		for range rapid.IntRange(1, 300).Draw(t, "calls") {
			after += uint64(rapid.IntRange(0, 2).Draw(t, "collectives"))
			done = max(done, after-min(after, uint64(rapid.IntRange(0, 40).Draw(t, "queued"))))
			calls = append(calls, after)
			tally.Count(Key{}, after, done)
			collective := done + 1 + uint64(rapid.IntRange(0, 3).Draw(t, "collective"))
			want := uint64(0)
			for _, a := range calls {
				if a < collective {
					want++
				}
			}

			got := uint64(0)
			for _, c := range tally.CallsBefore(collective) {
				got = c.Calls
			}

			if got != want {
				t.Fatalf("Before(%d) = %d calls, want %d", collective, got, want)
			}
		}

		if n := len(tally.histories[Key{}].segments); n > 2*(minPruneLength+64) {
			t.Errorf("got %d earlier counts, want at most %d", n, 2*(minPruneLength+64))
		}
	})
}

func TestWeightsDifferByRankAndTag(t *testing.T) {
	seen := map[uint64]bool{}
	for receiver := range 64 {
		for tag := range 100 {
			seen[Weight(receiver, tag)] = true
		}
	}

	if len(seen) != 6400 || seen[0] {
		t.Errorf("got %d different weights (0 among them: %v), want 6400 without 0", len(seen), seen[0])
	}
}
