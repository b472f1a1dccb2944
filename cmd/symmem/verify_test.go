package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem/cmd/symmem/internal/verify"
	"symmem/internal/launch"
	"symmem/internal/sys/systest"
)

// runSymmem runs the command in a process, and returns its exit code and output. The test fails
// only if the process cannot be run.
func runSymmem(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	cmd := systest.Command(t, systest.Patience, symmemBinary(t), args...)
	cmd.Stdout, cmd.Stderr = &outBuffer, &errBuffer
	err := cmd.Run()
	hasExitCode := err == nil || errors.As(err, new(*exec.ExitError))
	if !hasExitCode {
		t.Fatal(err)
	}

	return cmd.ProcessState.ExitCode(), outBuffer.String(), errBuffer.String()
}

// divergencePrefix matches the beginning of the line that a rank prints about a divergence.
var divergencePrefix = regexp.MustCompile(`^\[rank \d+\] divergence: `)

// runDiverging runs verify with the given check level on four ranks. The ranks diverge, because
// they place blocks by address. It returns the report and the divergence that all ranks printed.
func runDiverging(t *testing.T, check string) (report verify.Report, text string) {
	t.Helper()
	const ranks = 4
	code, stdout, stderr := runSymmem(t, "verify", "--ranks=4", "--placement=address", "--skew",
		"--churn=200", "--seed=1", "--callsites", "--json", "--check="+check)
	if code != exitBadResult {
		t.Fatalf("check %s: exit code %d; want %d\n%s", check, code, exitBadResult, stderr)
	}

	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("check %s: %v\n%s", check, err, stdout)
	}

	var texts []string
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for _, line := range lines {
		if !divergencePrefix.MatchString(line) {
			t.Errorf("check %s: standard error has the unexpected line %q", check, line)
		}

		texts = append(texts, divergencePrefix.ReplaceAllString(line, ""))
	}

	distinctTexts := slices.Compact(texts)
	if len(lines) != ranks || len(distinctTexts) != 1 {
		t.Fatalf("check %s: the %d ranks did not all print the same line:\n%s", check, ranks, stderr)
	}

	return report, distinctTexts[0]
}

// TestCheckLevelsReportSameFirstEvent runs the same diverging program with two check levels. With
// every, ranks compare each call, and stop before a sum is wrong. With registration, they compare
// less often, but must report the same first event that differs.
func TestCheckLevelsReportSameFirstEvent(t *testing.T) {
	every, everyText := runDiverging(t, "every")
	registration, registrationText := runDiverging(t, "registration")
	if every.Failed != 0 || every.NotRun == 0 {
		t.Errorf("every: %d cases failed, %d did not run; want 0 and some", every.Failed, every.NotRun)
	}

	if sum := every.Passed + every.NotRun; sum != len(every.Cases) {
		t.Errorf("every: %d cases passed, %d did not run; want %d together", every.Passed, every.NotRun,
			len(every.Cases))
	}

	if registration.Failed == 0 {
		t.Error("registration: no sum was wrong before the divergence, so the test proves nothing")
	}

	if diff := cmp.Diff(every.Divergence, registration.Divergence); diff != "" {
		t.Errorf("the divergences of every (-) and registration (+) differ:\n%s", diff)
	}

	if everyText != registrationText {
		t.Errorf("the texts of every and registration differ:\n%s\n%s", everyText, registrationText)
	}

	const file = "cmd/symmem/internal/verify/run.go:" // makes the calls; a line number follows
	if !strings.Contains(everyText, file) {
		t.Errorf("the text does not name a line of %s\n%s", file, everyText)
	}
}

// TestReportContainsOptions checks all fields of a report as JSON, except the time and the cases.
func TestReportContainsOptions(t *testing.T) {
	code, stdout, stderr := runSymmem(t, "verify", "--ranks=2", "--cases=2", "--rounds=1",
		"--size=1Ki", "--churn=16", "--seed=9", "--json")
	var report verify.Report
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || decoder.More() {
		t.Fatalf("Decode = %v, more output = %v, want one report:\n%s", err, decoder.More(), stdout)
	}

	if code != exitOK || stderr != "" {
		t.Errorf("exit code %d, standard error %q; want %d and nothing", code, stderr, exitOK)
	}

	if report.ElapsedMS <= 0 {
		t.Errorf("the run took %v ms, want a positive time", report.ElapsedMS)
	}

	report.ElapsedMS, report.Cases = 0, nil // are not compared
	want := verify.Report{
		Backend: "host", Source: "symmem launch", Ranks: 2, Check: "every", Placement: "creation",
		RequestedPath: "window", TakenPaths: "window", Churn: 16, Seed: 9, Rounds: 1, Groups: 1,
		Passed: 2 + 16/8,                      // the cases, and a check after every 8 steps of churn
		Norms:  verify.NormReport{Passed: 16}, // combinations of operation, type and quantization
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// codeAfter returns the exit code of a command after a signal has ended it, as in shells.
func codeAfter(s syscall.Signal) int { return 128 + int(s) }

// TestForwardedSignalDeterminesExitCode checks the exit code of a command that forwarded a signal
// to its ranks. The command exits as if the signal had ended it, unless all ranks succeed.
func TestForwardedSignalDeterminesExitCode(t *testing.T) {
	const noFailure = -1 // as launch.Result.FirstFailed, which is otherwise a rank
	for _, c := range []struct {
		name   string
		result launch.Result
		want   int
	}{
		{
			name: "signal ends ranks",
			result: launch.Result{
				Signal: syscall.SIGHUP,
				Exits:  []launch.Exit{{Code: codeAfter(syscall.SIGHUP), Signal: syscall.SIGHUP}},
			},
			want: codeAfter(syscall.SIGHUP),
		},
		{
			name: "ranks handle signal and fail",
			result: launch.Result{
				Signal: syscall.SIGQUIT,
				Exits:  []launch.Exit{{Code: 2}, {Code: 2}},
			},
			want: codeAfter(syscall.SIGQUIT),
		},
		{
			name: "ranks handle signal and succeed",
			result: launch.Result{
				Signal:      syscall.SIGTERM,
				FirstFailed: noFailure,
				Exits:       []launch.Exit{{Code: 0}},
			},
			want: exitOK,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := codeOf(exitErrorOf(&stderr, &c.result)); code != c.want {
				t.Errorf("exit code %d, want %d", code, c.want)
			}

			if stderr.Len() > 0 {
				t.Errorf("standard error = %q; want nothing", &stderr)
			}
		})
	}
}

// codeOf returns the exit code of a command that returns err.
func codeOf(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}

	return exitOK
}

// TestExitCodeIsLargestOfRanks checks how the exit codes of ranks are combined. Crashes of ranks
// are printed, but not codes with a known meaning, because the ranks have printed why.
func TestExitCodeIsLargestOfRanks(t *testing.T) {
	ok := launch.Exit{Code: exitOK}
	wrong := launch.Exit{Code: exitBadResult}
	failed := launch.Exit{Code: exitIncomplete}
	killedRank1 := func(s syscall.Signal) launch.Exit {
		return launch.Exit{Rank: 1, Code: codeAfter(s), Signal: s}
	}
	for _, c := range []struct {
		name     string
		exits    []launch.Exit
		want     int
		wantText string // part of standard error, or "" if it must be empty
	}{
		{
			name:  "all ranks succeed",
			exits: []launch.Exit{ok, ok},
			want:  exitOK,
		},
		{
			name:  "a wrong sum on one rank",
			exits: []launch.Exit{ok, wrong},
			want:  exitBadResult,
		},
		{
			name:  "a rank that could not run outweighs wrong sums",
			exits: []launch.Exit{wrong, failed, wrong},
			want:  exitIncomplete,
		},
		{
			name:     "killed rank outweighs a wrong sum",
			exits:    []launch.Exit{wrong, killedRank1(syscall.SIGKILL)},
			want:     exitIncomplete,
			wantText: "rank 1",
		},
		{
			name:     "rank killed by SIGTERM",
			exits:    []launch.Exit{failed, killedRank1(syscall.SIGTERM)},
			want:     exitIncomplete,
			wantText: "rank 1",
		},
		{
			name:     "an unknown code is printed",
			exits:    []launch.Exit{{Code: 66}},
			want:     exitIncomplete,
			wantText: "code 66",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := codeOf(exitErrorOf(&stderr, &launch.Result{Exits: c.exits}))
			if code != c.want {
				t.Errorf("exit code %d, want %d", code, c.want)
			}

			if c.wantText == "" && stderr.Len() > 0 {
				t.Errorf("standard error = %q; want nothing", &stderr)
			}

			if !strings.Contains(stderr.String(), c.wantText) {
				t.Errorf("standard error = %q; want a text with %q", &stderr, c.wantText)
			}
		})
	}
}
