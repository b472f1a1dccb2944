package nccl

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/softgpu"
)

// TestMain takes the machine's GPUs, or builds the software GPU where there are none.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	spreadRanks()
	if (Backend{}).Available() != nil {
		cudaPath, ncclPath, err := softgpu.Build()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv("SYMMEM_CUDA", cudaPath)
		os.Setenv("SYMMEM_NCCL", ncclPath)
	}
	// A test that runs others in a process of its own hands the software GPU down.
	if name, err := modelName(); err == nil && isSoft(name) {
		gpu.EndingTime = 5 * time.Second
	}
	return m.Run()
}

// modelName is the name of the first GPU.
func modelName() (string, error) {
	gpus, err := cuda.Load()
	if err != nil {
		return "", err
	}
	gpu, err := gpus.Device(0)
	if err != nil {
		return "", err
	}
	return gpu.Name()
}

// isSoft reports whether a GPU of that name is one of software.
func isSoft(name string) bool { return strings.HasPrefix(name, "Software") }
