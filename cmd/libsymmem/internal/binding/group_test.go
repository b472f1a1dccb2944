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
		groupID("pair", []int{0, 1}), groupID("pair", []int{0, 2}),
		groupID("many", many), groupID("many", many[1:]),
		groupID(strings.Repeat("n", 1<<20), many), groupID(strings.Repeat("n", 1<<20), nil),
	} {
		if len(id) > symmem.MaxGroupID/2 || ids[id] {
			t.Errorf("id %.80q has %d bytes, duplicate %v; want a unique id of at most %d",
				id, len(id), ids[id], symmem.MaxGroupID/2)
		}

		ids[id] = true
	}

	if id := groupID("pair", []int{0, 1}); id != "pair [0 1]" {
		t.Errorf("short id = %q, want the name and the ranks", id)
	}
}
