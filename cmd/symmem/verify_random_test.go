package main

import (
	"encoding/json"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/verify/random"
	"symmem/internal/softgpu"
)

// useSoftwareGPU makes processes of this test load libraries that emulate CUDA and NCCL.
func useSoftwareGPU(t *testing.T) {
	t.Helper()
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	t.Setenv("SYMMEM_CUDA", cuda)
	t.Setenv("SYMMEM_NCCL", nccl)
}

// runRandom runs rounds of random operations on two ranks, with symmem verify.
func runRandom(t *testing.T, flags ...string) (code int, report random.Report, stderr string) {
	t.Helper()
	args := []string{"verify", "--from-round=1", "--json", "--max-bytes=64K", "--ranks=2"}
	code, stdout, stderr := runSymmem(t, append(args, flags...)...)
	if stdout == "" {
		t.Fatalf("exit code %d without a report\n%s", code, stderr)
	}

	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&report)
	hasMore := decoder.More()
	if err != nil || hasMore {
		t.Fatalf("Decode = %v, more output = %v, want one report:\n%s", err, hasMore, stdout)
	}

	return code, report, stderr
}

// checkFiveRounds checks that five rounds computed right results, released all resources, aborted
// groups and replayed graphs.
func checkFiveRounds(t *testing.T, code int, r random.Report, stderr string) {
	t.Helper()
	const rounds = 5
	if code != exitOK || r.Wrong != 0 || r.Rounds != rounds {
		t.Errorf("exit code %d, %d rounds, %d wrong elements; want %d, %d rounds and 0\n%s", code,
			r.Rounds, r.Wrong, exitOK, rounds, stderr)
	}

	if r.Aborts == 0 || r.Replays == 0 {
		t.Errorf("%d aborts, %d replays; want some of both", r.Aborts, r.Replays)
	}

	if len(r.Resources) == 0 {
		t.Error("the report has no resources, so the test cannot find leaks")
	}

	if leaks := r.Leaks(); len(leaks) > 0 {
		t.Errorf("resources that were not released: %v; want none", leaks)
	}

	const beginOfProgressLine = "round "
	if lines := strings.Count(stderr, beginOfProgressLine); lines != rounds {
		t.Errorf("got %d lines of progress, want %d:\n%s", lines, rounds, stderr)
	}
}

func TestRandomProgramsOnHost(t *testing.T) {
	code, report, stderr := runRandom(t, "--backend=host", "--rounds=5", "--seed=2")
	checkFiveRounds(t, code, report, stderr)
}

// Placement by address puts a buffer at different offsets on different ranks, so results are wrong.
func TestWrongRoundPrintsRepeatCommand(t *testing.T) {
	code, report, stderr := runRandom(t, "--backend=host", "--placement=address", "--check=off",
		"--rounds=5", "--seed=1")
	if code != exitBadResult || report.Wrong == 0 {
		t.Errorf("exit code %d, %d wrong elements; want %d and some", code, report.Wrong, exitBadResult)
	}

	const beginOfCommand = "to run it again: symmem verify --ranks 2 --seed 1 --from-round"
	if !strings.Contains(stderr, beginOfCommand) {
		t.Errorf("standard error %q; want it to contain %q", stderr, beginOfCommand)
	}
}

func TestRandomProgramsReportDivergence(t *testing.T) {
	code, _, stderr := runRandom(t, "--backend=host", "--placement=address", "--check=every",
		"--rounds=5", "--seed=1")
	if code != exitBadResult || !strings.Contains(stderr, "ranks diverged in pool") {
		t.Errorf("exit code %d; want %d and a divergence\n%s", code, exitBadResult, stderr)
	}
}

func TestRandomProgramsOnSoftwareGPU(t *testing.T) {
	useSoftwareGPU(t)
	code, report, stderr := runRandom(t, "--backend=nccl", "--rounds=5", "--steps=100", "--seed=1")
	checkFiveRounds(t, code, report, stderr)
}
