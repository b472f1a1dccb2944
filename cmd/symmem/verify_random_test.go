package main

import (
	"encoding/json"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/verify/random"
	"symmem/internal/softgpu"
)

// softly makes the commands of a test use the software GPU.
func softly(t *testing.T) {
	t.Helper()
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SYMMEM_CUDA", cuda)
	t.Setenv("SYMMEM_NCCL", nccl)
}

// drawn runs random programs and parses their report.
func drawn(t *testing.T, args ...string) (code int, report random.Report, stderr string) {
	t.Helper()
	all := []string{"verify", "--from-round=1", "--json", "--max-bytes=64K", "--ranks=2"}
	code, stdout, stderr := symmemRun(t, append(all, args...)...)
	if stdout == "" {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || decoder.More() {
		t.Fatalf("%v, more %v:\n%s", err, decoder.More(), stdout)
	}
	return code, report, stderr
}

// back checks that a run was correct and released its resources.
func back(t *testing.T, code int, r random.Report, stderr string) {
	t.Helper()
	if code != exitOK || r.Wrong != 0 || r.Rounds != 5 || r.Aborts == 0 || r.Replays == 0 {
		t.Errorf("exit code %d, %+v\n%s", code, r, stderr)
	}
	if len(r.Resources) == 0 || len(r.Lost()) > 0 {
		t.Errorf("resources %v", r.Resources)
	}
	if lines := strings.Count(stderr, "round "); lines != 5 {
		t.Errorf("%d lines of progress for 5 rounds:\n%s", lines, stderr)
	}
}

func TestRandomProgramsOnHostAreRightAndReleaseResources(t *testing.T) {
	code, report, stderr := drawn(t, "--backend=host", "--rounds=5", "--seed=2")
	back(t, code, report, stderr)
}

func TestWrongRandomRoundPrintsCommandToRepeatIt(t *testing.T) {
	code, report, stderr := drawn(t, "--backend=host", "--placement=address", "--check=off",
		"--rounds=5", "--seed=1")
	again := "to run it again: symmem verify --ranks 2 --seed 1 --from-round"
	if code != exitWrong || report.Wrong == 0 || !strings.Contains(stderr, again) {
		t.Errorf("exit code %d, %d wrong elements\n%s", code, report.Wrong, stderr)
	}
}

func TestDivergentRandomProgramsReportDivergence(t *testing.T) {
	code, _, stderr := drawn(t, "--backend=host", "--placement=address", "--check=every",
		"--rounds=5", "--seed=1")
	if code != exitWrong || !strings.Contains(stderr, "ranks diverged in pool") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// TestOnTheSoftwareGPU runs commands that need GPUs. Their times are not meaningful.
func TestOnTheSoftwareGPU(t *testing.T) {
	softly(t)
	t.Run("random programs are right and give everything back", func(t *testing.T) {
		code, report, stderr := drawn(t, "--backend=nccl", "--rounds=5", "--steps=100", "--seed=1")
		back(t, code, report, stderr)
	})
}
