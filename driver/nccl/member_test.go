package nccl

import "testing"

// TestKernelsOfOneProcessShareItsGPU: ranks of one process on one GPU count on a part of it each,
// and so their kernels, which wait for each other, have room side by side.
func TestKernelsOfOneProcessShareItsGPU(t *testing.T) {
	all := []*member{
		{Process: "a", GPU: "0"},
		{Process: "a", GPU: "0"},
		{Process: "a", GPU: "1"},
		{Process: "b", GPU: "0"},
		{Process: "a", GPU: "0"},
	}
	for r, want := range []int{3, 3, 1, 1, 3} {
		if got := sharers(all, all[r]); got != want {
			t.Errorf("rank %d: %d ranks share its part of the GPU, want %d", r, got, want)
		}
	}
}
