package nccl

import "testing"

// TestSharersCountsRanksOfOneProcess counts the ranks of one process that share a GPU. The kernels
// of these ranks wait for each other, so the ranks must divide the GPU.
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
			t.Errorf("rank %d: got %d sharers, want %d", r, got, want)
		}
	}
}
