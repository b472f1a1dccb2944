package nccl

import "testing"

// TestSharersCountsRanksOfOneProcess checks that sharers counts only ranks that use the same GPU
// in the same process.
func TestSharersCountsRanksOfOneProcess(t *testing.T) {
	all := []*member{
		{ProcessID: "a", GPUID: "0"},
		{ProcessID: "a", GPUID: "0"},
		{ProcessID: "a", GPUID: "1"},
		{ProcessID: "b", GPUID: "0"},
		{ProcessID: "a", GPUID: "0"},
	}
	for r, want := range []int{3, 3, 1, 1, 3} {
		if got := countSharers(all, all[r]); got != want {
			t.Errorf("rank %d: sharers = %d, want %d", r, got, want)
		}
	}
}
