package main

import (
	"encoding/json"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/verify/random"
	"symmem/internal/softgpu"
)

func useSoftwareGPU(t *testing.T) {
	t.Helper()
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SYMMEM_CUDA", cuda)
	t.Setenv("SYMMEM_NCCL", nccl)
}

func runRandom(t *testing.T, flags ...string) (code int, report random.Report, stderr string) {
	t.Helper()
	args := []string{"verify", "--from-round=1", "--json", "--max-bytes=64K", "--ranks=2"}
	code, stdout, stderr := runSymmem(t, append(args, flags...)...)
	if stdout == "" {
		t.Fatalf("exit code %d without a report\n%s", code, stderr)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || decoder.More() {
		t.Fatalf("Decode = %v, more output = %v, want one report:\n%s", err, decoder.More(), stdout)
	}
	return code, report, stderr
}

// checkFiveRounds checks that five rounds gave right results and released all resources.
func checkFiveRounds(t *testing.T, code int, r random.Report, stderr string) {
	t.Helper()
	if code != exitOK || r.Wrong != 0 || r.Rounds != 5 || r.Aborts == 0 || r.Replays == 0 {
		t.Errorf("exit code %d, report %+v; want code 0, 5 correct rounds, aborts and replays\n%s",
			code, r, stderr)
	}
	if len(r.Resources) == 0 || len(r.Leaks()) > 0 {
		t.Errorf("resources after the run: %v, not released: %v; want all released",
			r.Resources, r.Leaks())
	}
	if lines := strings.Count(stderr, "round "); lines != 5 {
		t.Errorf("got %d lines of progress, want 5:\n%s", lines, stderr)
	}
}

func TestRandomProgramsOnHost(t *testing.T) {
	code, report, stderr := runRandom(t, "--backend=host", "--rounds=5", "--seed=2")
	checkFiveRounds(t, code, report, stderr)
}

func TestWrongRoundPrintsRepeatCommand(t *testing.T) {
	code, report, stderr := runRandom(t, "--backend=host", "--placement=address", "--check=off",
		"--rounds=5", "--seed=1")
	repeatCommand := "to run it again: symmem verify --ranks 2 --seed 1 --from-round"
	if code != exitWrong || report.Wrong == 0 || !strings.Contains(stderr, repeatCommand) {
		t.Errorf("exit code %d, %d wrong elements; want 1 and the command to repeat the round\n%s",
			code, report.Wrong, stderr)
	}
}

func TestRandomProgramsReportDivergence(t *testing.T) {
	code, _, stderr := runRandom(t, "--backend=host", "--placement=address", "--check=every",
		"--rounds=5", "--seed=1")
	if code != exitWrong || !strings.Contains(stderr, "ranks diverged in pool") {
		t.Errorf("exit code %d; want 1 and a divergence\n%s", code, stderr)
	}
}

func TestRandomProgramsOnSoftwareGPU(t *testing.T) {
	useSoftwareGPU(t)
	code, report, stderr := runRandom(t, "--backend=nccl", "--rounds=5", "--steps=100", "--seed=1")
	checkFiveRounds(t, code, report, stderr)
}
