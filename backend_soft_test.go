package symmem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"symmem/internal/invariants"
	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// racing reports whether this run has the race detector.
var racing bool

// TestSoftwareGPU runs the tests of this package a second time, in short, in a
// process whose libraries are those of the software GPU. That process has its backend from the
// environment, and a process that has does not come here, so none starts itself again. It has no
// race detector, which would take minutes: races of this package are looked for in the first run,
// and those of the backend in its own tests.
func TestSoftwareGPU(t *testing.T) {
	if os.Getenv(backendVariable) != "" {
		t.Skipf("%s has chosen the backend of this run", backendVariable)
	}
	if testing.Short() {
		t.Skip("runs all tests of this package again")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("the software GPU is compiled: %v", err)
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	c := systest.Command(t, 6*time.Minute, unraced(t),
		"-test.short", "-test.timeout=5m", "-rapid.checks=20", "-rapid.nofailfile",
		"-test.bench=Submit", "-test.benchtime=1x")
	c.Env = append(os.Environ(), backendVariable+"=nccl", "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
		"SOFTGPU_FABRIC=1")
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// unraced returns a test binary of this package without the race detector.
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
