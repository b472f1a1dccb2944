package nccl

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/softgpu"
)

// TestMain takes the machine's GPUs, or builds the software GPU where there are none.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if err := loadKernelsFirst(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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
		// Tests that are parallel are processes of their own, which mostly wait.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// loadKernelsFirst begins anew, with a variable that CUDA reads, where ranks share a GPU: they are
// goroutines, so they share its context, too, in which the first launch of a kernel may wait for
// kernels of other ranks (docs/design/nccl-memory.md).
func loadKernelsFirst() error {
	const loading = "CUDA_MODULE_LOADING"
	if !sharing() || os.Getenv(loading) != "" {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, append(os.Environ(), loading+"=EAGER"))
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

// needDevices skips a test that needs more GPUs than the machine has. The software GPU has enough,
// unless it was told to have fewer.
func needDevices(t *testing.T, n int) {
	t.Helper()
	have := devices(t)
	switch {
	case have >= n:
	case soft(t) && os.Getenv("SOFTGPU_DEVICES") == "":
		t.Fatalf("the software GPU has %d devices, and the test needs %d", have, n)
	default:
		t.Skipf("the machine has %d GPUs, and the test needs %d", have, n)
	}
}

// atMost is how many ranks a test has that makes do with less: as many as there are GPUs, and two
// where it will be skipped.
func atMost(t *testing.T, n int) int {
	t.Helper()
	return min(n, max(2, devices(t)))
}

// needDirect skips a test on GPUs whose links the direct path does not take. Anything else that
// keeps a group from it is a failure.
func needDirect(t *testing.T, of driver.Communicator) {
	t.Helper()
	c := of.(*communicator)
	if c.direct.unavailable == "" {
		return
	}
	if err := linked(c.device.gpu, &c.device.self, c.members); err != nil {
		t.Skipf("the direct path does not take the links of these GPUs: %v", err)
	}
	t.Fatalf("the group has no direct path, though its GPUs are linked: %s", c.direct.unavailable)
}
