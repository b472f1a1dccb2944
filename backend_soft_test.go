package symmem_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"symmem/internal/invariants"
	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// racing is true if the race detector is enabled.
var racing bool

// TestSoftwareGPU runs all other short tests of this package again, in a new process that loads
// the software GPU instead of CUDA and NCCL. The process does not use the race detector, because
// it would then take minutes.
func TestSoftwareGPU(t *testing.T) {
	t.Parallel()
	if os.Getenv(backendVariable) != "" {
		t.Skipf("%s already sets the backend for this run", backendVariable)
	}
	if testing.Short() {
		t.Skip("runs all tests of this package again")
	}
	if _, err := exec.LookPath("gcc"); errors.Is(err, exec.ErrNotFound) {
		t.Skip(fmt.Errorf("the software GPU cannot be compiled: %w", err))
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	binary, limit := unraced(t), 20*time.Minute
	if deadline, ok := t.Deadline(); ok {
		limit = min(limit, time.Until(deadline)-20*time.Second)
	}
	c := systest.Command(t, limit, binary,
		"-test.short", "-test.timeout="+(limit-20*time.Second).String(), "-rapid.checks=20",
		"-rapid.nofailfile",
		"-test.bench=Submit", "-test.benchtime=1x")
	c.Env = append(os.Environ(), backendVariable+"=nccl", "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
		"SOFTGPU_FABRIC=1")
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// unraced returns the path of a test binary of this package that does not use the race detector.
func unraced(t *testing.T) string {
	t.Helper()
	if !racing {
		return os.Args[0]
	}
	path := filepath.Join(t.TempDir(), "symmem.test")
	build := []string{"test", "-c", "-o", path, "."}
	if invariants.Enabled {
		build = []string{"test", "-tags", "invariants", "-c", "-o", path, "."}
	}
	output, err := exec.CommandContext(t.Context(), "go", build...).CombinedOutput()
	if err != nil {
		t.Fatalf("building the tests without the race detector: %v\n%s", err, output)
	}
	return path
}
