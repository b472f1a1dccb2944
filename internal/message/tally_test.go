package message

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestTallyCountsCallsBeforeACollective(t *testing.T) {
	var tally Tally
	for i, call := range []struct {
		key   Key
		after uint64
	}{{Key{1, 0}, 0}, {Key{1, 0}, 0}, {Key{1, 0}, 2}, {Key{Any, 5}, 2}} {
		if got := tally.Count(call.key, call.after, 0); got != [...]uint64{1, 2, 3, 1}[i] {
			t.Errorf("call %d has number %d", i, got)
		}
	}
	for collective, want := range map[uint64]string{
		1: "[{{1 0} 2}]", 2: "[{{1 0} 2}]", 3: "[{{-1 5} 1} {{1 0} 3}]",
	} {
		if got := fmt.Sprint(tally.Before(collective)); got != want {
			t.Errorf("before collective %d: %s, want %s", collective, got, want)
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
			asked := done + 1 + uint64(rapid.IntRange(0, 3).Draw(t, "asked"))
			want := uint64(0)
			for _, a := range calls {
				if a < asked {
					want++
				}
			}
			got := uint64(0)
			for _, c := range tally.Before(asked) {
				got = c.Calls
			}
			if got != want {
				t.Fatalf("%d calls before collective %d, want %d", got, asked, want)
			}
		}
		if n := len(tally.records[Key{}].earlier); n > 2*(minLimit+64) {
			t.Errorf("%d marks are kept", n)
		}
	})
}

func TestWeightsDifferByRankAndTag(t *testing.T) {
	seen := map[uint64]bool{}
	for to := range 64 {
		for tag := range 100 {
			seen[Weight(to, tag)] = true
		}
	}
	if len(seen) != 6400 || seen[0] {
		t.Errorf("%d weights of 6400 differ, or one is 0", len(seen))
	}
}
