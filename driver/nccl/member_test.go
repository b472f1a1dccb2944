package nccl

import "testing"

// TestSharersCountsRanksOfOneProcess checks that sharers counts only ranks that use the same GPU
// in the same process.
func TestSharersCountsRanksOfOneProcess(t *testing.T) {
	all := []*member{
		{Process: "a", GPU: "0"},
		{Process: "a", GPU: "0"},
		{Process: "a", GPU: "1"},
		{Process: "b", GPU: "0"},
		{Process: "a", GPU: "0"},
	}
	for r, want := range []int{3, 3, 1, 1, 3} {
		if got := sharers(all, all[r]); got != want {
			t.Errorf("rank %d: sharers = %d, want %d", r, got, want)
		}
	}
}
