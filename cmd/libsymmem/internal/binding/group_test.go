package binding

import (
	"strings"
	"testing"

	"symmem"
)

func TestGroupIDsAreShortAndDistinct(t *testing.T) {
	many := make([]int, 10_000)
	ids := map[string]bool{}
	for _, id := range []string{
		groupKey("pair", []int{0, 1}), groupKey("pair", []int{0, 2}),
		groupKey("many", many), groupKey("many", many[1:]),
		groupKey(strings.Repeat("n", 1<<20), many), groupKey(strings.Repeat("n", 1<<20), nil),
	} {
		if len(id) > symmem.MaxGroupID/2 || ids[id] {
			t.Errorf("id %.80q has %d bytes, duplicate %v; want a unique id of at most %d",
				id, len(id), ids[id], symmem.MaxGroupID/2)
		}

		ids[id] = true
	}

	if id := groupKey("pair", []int{0, 1}); id != "pair [0 1]" {
		t.Errorf("short id = %q, want the name and the ranks", id)
	}
}
