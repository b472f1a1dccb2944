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

// The tests run on the machine's GPUs. Without a GPU, they run on the software GPU: libraries that
// simulate CUDA, NCCL and several GPUs on the CPU. A rank of a test usually has its own GPU. On a
// machine with too few GPUs, a test is skipped.

// TestMain runs the tests. Without a GPU, it builds the software GPU first.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests prepares the process, runs the tests, and returns the exit status. It may restart the
// program.
func runTests(m *testing.M) int {
	if err := loadKernelsEagerly(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	applyMachinesVariable()
	if (Backend{}).Available() != nil { // there is no GPU
		cudaPath, ncclPath, err := softgpu.Build()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}

		os.Setenv("SYMMEM_CUDA", cudaPath)
		os.Setenv("SYMMEM_NCCL", ncclPath)
	}

	// A child process of a test finds the software GPU through its parent's environment, so that the
	// GPU's name must be checked here.
	if name, err := modelName(); err == nil && isSoft(name) {
		gpu.KernelEndTimeout = 5 * time.Second // the software GPU is slow
		// Each parallel test runs in a child process, which is mostly idle.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}

	return m.Run()
}

// loadKernelsEagerly restarts the program with CUDA_MODULE_LOADING=EAGER if ranks share a GPU and
// the variable is not set. Otherwise, CUDA would load a kernel at its first launch, and could wait
// for kernels of other ranks meanwhile.
func loadKernelsEagerly() error {
	const loading = "CUDA_MODULE_LOADING"
	if !isSharingEnabled() || os.Getenv(loading) != "" {
		return nil
	}

	program, err := os.Executable()
	if err != nil {
		return err
	}

	return syscall.Exec(program, os.Args, append(os.Environ(), loading+"=EAGER"))
}

// modelName returns the name of the first GPU.
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

// isSoft reports whether a name of a GPU is that of the software GPU.
func isSoft(name string) bool { return strings.HasPrefix(name, "Software") }

// needDevices skips the test on a machine with fewer than n GPUs. If the software GPU has fewer
// devices although SOFTGPU_DEVICES does not limit them, the test fails.
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

// ranksUpTo returns the number of ranks for a test with up to n ranks: one for each GPU, but at
// least two. If the machine has fewer than two GPUs, the test then skips itself by needDevices.
func ranksUpTo(t *testing.T, n int) int {
	t.Helper()
	return min(n, max(2, maxRanks(t)))
}

// needDirect skips the test if the group has no direct path because of the links between its GPUs,
// for example without NVLink. If the direct path is unavailable for another reason, the test
// fails.
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
