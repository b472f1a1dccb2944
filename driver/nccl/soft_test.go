package nccl

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem/driver/nccl/softgpu"
)

// TestMain takes the machine's GPUs, or builds the software GPU where there are none.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	spreadRanks()
	if (Backend{}).Available() == nil {
		return m.Run()
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	endingTime = 5 * time.Second
	os.Setenv("SYMMEM_CUDA", cuda)
	os.Setenv("SYMMEM_NCCL", nccl)
	return m.Run()
}
