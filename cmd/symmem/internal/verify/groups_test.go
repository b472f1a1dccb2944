package verify

import (
	"testing"

	"symmem/driver"
)

func TestGroupsOverlap(t *testing.T) {
	for n := 1; n <= 12; n++ {
		if len(membersOf(0, n)) != n {
			t.Errorf("group 0 of %d ranks = %v, want all ranks", n, membersOf(0, n))
		}

		for a := 1; a <= n+2; a++ {
			for b := 1; b <= n+2; b++ {
				shared := 0
				for rank := range n {
					if isMember(a, rank, n) && isMember(b, rank, n) {
						shared++
					}
				}

				if shared == 0 {
					t.Errorf("groups %d and %d of %d ranks are disjoint: %v and %v", a, b, n,
						membersOf(a, n), membersOf(b, n))
				}
			}
		}
	}
}

func TestGroupsOfFourRanks(t *testing.T) {
	for k, want := range []string{"0-3", "0-2", "1-3", "0,2-3", "0-1,3", "0-2"} {
		if got := driver.Spans(membersOf(k, 4)); got != want {
			t.Errorf("group %d = %s, want %s", k, got, want)
		}
	}
}
