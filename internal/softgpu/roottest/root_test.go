// Package roottest tests package symmem on the software GPU. It is separate, so that the go
// command runs these tests and those of package symmem on the host backend at the same time.
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

// root is the folder of package symmem.
const root = "../../.."

var errShort = errors.New("skipped in short mode")

// TestSoftwareGPU runs all short tests of package symmem, and one of its benchmarks once, in a
// process that loads the software GPU instead of CUDA and NCCL. The process does not use the race
// detector, because it would then take minutes.
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
	// The process ends at -test.timeout, its command some time later (limit), and this test later
	// still. Each can therefore print its stacks.
	const margin = 20 * time.Second
	limit := 20 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		limit = min(limit, time.Until(deadline)-margin)
	}

	c := systest.Command(t, limit, binary,
		"-test.short", "-test.timeout="+(limit-margin).String(),
		"-rapid.checks=20", "-rapid.nofailfile", // fewer random programs, and no files in the sources
		"-test.bench=Submit", "-test.benchtime=1x")
	c.Dir = root
	c.Env = append(os.Environ(), "SYMMEM_TEST_BACKEND=nccl", "SYMMEM_CUDA="+cuda,
		"SYMMEM_NCCL="+nccl, "SOFTGPU_FABRIC=1")
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// buildTests compiles the tests of package symmem and returns the path of the program.
func buildTests(t *testing.T) string {
	t.Helper()
	readSources(t)
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

// readSources reads the sources of the tests. The go command caches the result of this test, and
// repeats it if files that it has read change. It also repeats it if symmem changes, because this
// package imports symmem.
func readSources(t *testing.T) {
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
