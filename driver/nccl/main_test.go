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

// TestMain runs the tests on the GPUs of the machine. If it has none, the tests run on the software
// GPU, which simulates CUDA, NCCL and several GPUs.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests returns an exit status.
func runTests(m *testing.M) int {
	if err := restartWithEagerLoading(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	applyMachinesVariable()
	hasGPU := (Backend{}).Available() == nil
	if !hasGPU {
		cudaPath, ncclPath, err := softgpu.Build()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}

		os.Setenv("SYMMEM_CUDA", cudaPath)
		os.Setenv("SYMMEM_NCCL", ncclPath)
	}

	// A child process inherits both variables, so hasGPU is true there even on the software GPU.
	if name, err := modelName(); err == nil && isSoft(name) {
		gpu.KernelEndTimeout = 5 * time.Second // the software GPU is slow
		// Parallel tests mostly wait for child processes.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}

	return m.Run()
}

// restartWithEagerLoading restarts the program with CUDA_MODULE_LOADING=EAGER if ranks share a GPU.
// Otherwise, loading a kernel at its first launch might wait for kernels of other ranks.
func restartWithEagerLoading() error {
	const variable = "CUDA_MODULE_LOADING"
	if !isSharingEnabled() || os.Getenv(variable) != "" {
		return nil
	}

	program, err := os.Executable()
	if err != nil {
		return err
	}

	return syscall.Exec(program, os.Args, append(os.Environ(), variable+"=EAGER"))
}

func modelName() (string, error) {
	gpus, err := cuda.Load()
	if err != nil {
		return "", err
	}

	first, err := gpus.Device(0)
	if err != nil {
		return "", err
	}

	return first.Name()
}

func isSoft(modelName string) bool { return strings.HasPrefix(modelName, "Software") }

// needDevices skips the test if there are fewer than n GPUs. With the software GPU, the test fails
// instead, unless SOFTGPU_DEVICES sets the number of GPUs.
func needDevices(t *testing.T, n int) {
	t.Helper()
	count := maxRanks(t)
	if count >= n {
		return
	}

	if usesSoftGPU(t) && os.Getenv("SOFTGPU_DEVICES") == "" {
		t.Fatalf("the software GPU has only %d devices, but the test needs %d", count, n)
	}

	t.Skip(fmt.Errorf("the machine has only %d GPUs, but the test needs %d: %w", count, n,
		driver.ErrUnsupported))
}

// ranksUpTo limits n to the number of GPUs, but returns at least 2. On one GPU, newTestGroup then
// skips the test.
func ranksUpTo(t *testing.T, n int) int {
	t.Helper()
	return min(n, max(2, maxRanks(t)))
}

// needDirect skips the test if the links between the group's GPUs do not support the direct path.
// If the path is unavailable for another reason, the test fails.
func needDirect(t *testing.T, group driver.Communicator) {
	t.Helper()
	c := group.(*communicator)
	if c.direct.unavailableReason == "" {
		return
	}

	if err := checkLinks(c.device.gpu, &c.device.self, c.members); err != nil {
		t.Skipf("the direct path does not support the links of these GPUs: %v", err)
	}

	t.Fatalf("the group has no direct path, although NVLink connects its GPUs: %s",
		c.direct.unavailableReason)
}
