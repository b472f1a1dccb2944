// Package roottest tests package symmem on the software GPU, libraries that replace CUDA and NCCL.
// It is a separate package so that go test runs it in parallel with package symmem.
package roottest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	_ "symmem"
	"symmem/internal/invariants"
	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// root is the source folder of package symmem.
const root = "../../.."

var errShort = errors.New("skipped in short mode")

// TestSoftwareGPU runs the short tests of package symmem in a child process. They are built without
// the race detector, with which they would take minutes.
func TestSoftwareGPU(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(fmt.Errorf("it runs all tests of another package: %w", errShort))
	}

	if _, err := exec.LookPath("gcc"); errors.Is(err, exec.ErrNotFound) {
		t.Skip(fmt.Errorf("the software GPU cannot be compiled: %w", err))
	}

	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	binary := buildTests(t)
	// If a test hangs, the child reaches its limit first and has this time to print stacks.
	const margin = 20 * time.Second
	commandLimit := 20 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		commandLimit = min(commandLimit, time.Until(deadline)-margin)
	}

	childLimit := commandLimit - margin
	c := systest.Command(t, commandLimit, binary,
		"-test.short",
		"-test.timeout="+childLimit.String(),
		"-rapid.checks=20",  // fewer random programs
		"-rapid.nofailfile", // no files in the folder of the sources
		"-test.bench=Submit",
		"-test.benchtime=1x") // one iteration
	c.Dir = root
	c.Env = append(os.Environ(), "SYMMEM_TEST_BACKEND=nccl", "SYMMEM_CUDA="+cuda,
		"SYMMEM_NCCL="+nccl, "SOFTGPU_FABRIC=1")
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// buildTests compiles the tests of package symmem and returns the path of the binary.
func buildTests(t *testing.T) string {
	t.Helper()
	dependOnTestFiles(t)
	path := filepath.Join(t.TempDir(), "symmem.test")
	build := []string{"test", "-c", "-vet=off", "-o", path}
	if invariants.Enabled {
		build = append(build, "-tags", "invariants")
	}

	c := exec.CommandContext(t.Context(), "go", append(build, "symmem")...)
	if output, err := c.CombinedOutput(); err != nil {
		t.Fatalf("building the tests: %v\n%s", err, output)
	}

	return path
}

// dependOnTestFiles reads all Go files of package symmem, so that go test discards the cached
// result of this test after any of them changes. The import of symmem covers only files that are
// not tests.
func dependOnTestFiles(t *testing.T) {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("found %d sources: %v", len(sources), err)
	}

	for _, source := range sources {
		if _, err := os.ReadFile(source); err != nil {
			t.Fatal(err)
		}
	}
}
