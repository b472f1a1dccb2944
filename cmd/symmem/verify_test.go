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

func runSymmem(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	cmd := systest.Command(t, systest.Patience, symmemBinary(t), args...)
	cmd.Stdout, cmd.Stderr = &outBuffer, &errBuffer
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), outBuffer.String(), errBuffer.String()
}

var rankPrefix = regexp.MustCompile(`^\[rank \d+\] divergence: `)

// runDiverging runs verify with the given check level on four ranks. The ranks diverge, because
// they place blocks by address. It returns the report and the divergence that all ranks printed.
func runDiverging(t *testing.T, check string) (report verify.Report, text string) {
	t.Helper()
	code, stdout, stderr := runSymmem(t, "verify", "--ranks=4", "--placement=address", "--skew",
		"--churn=200", "--seed=1", "--callsites", "--json", "--check="+check)
	if code != exitWrong {
		t.Fatalf("check %s: exit code %d; want 1\n%s", check, code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("check %s: %v\n%s", check, err, stdout)
	}
	var texts []string
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for _, line := range lines {
		if !rankPrefix.MatchString(line) {
			t.Errorf("check %s: standard error has the unexpected line %q", check, line)
		}
		texts = append(texts, rankPrefix.ReplaceAllString(line, ""))
	}
	if len(lines) != 4 || len(slices.Compact(texts)) != 1 {
		t.Fatalf("check %s: the 4 ranks did not all print the same line:\n%s", check, stderr)
	}
	return report, texts[0]
}

func TestCheckLevelsReportSameFirstEvent(t *testing.T) {
	every, everyText := runDiverging(t, "every")
	registration, registrationText := runDiverging(t, "registration")
	if every.Failed != 0 || every.NotRun == 0 || every.Passed+every.NotRun != len(every.Cases) {
		t.Errorf("every: passed %d, failed %d, not run %d of %d cases; want none failed, some not run",
			every.Passed, every.Failed, every.NotRun, len(every.Cases))
	}
	if registration.Failed == 0 {
		t.Error("registration: no sum was wrong before the divergence, so the test proves nothing")
	}
	if diff := cmp.Diff(every.Divergence, registration.Divergence); diff != "" {
		t.Errorf("the divergences of every (-) and registration (+) differ:\n%s", diff)
	}
	if everyText != registrationText ||
		!strings.Contains(everyText, "cmd/symmem/internal/verify/run.go:") {
		t.Errorf("got\n%s\nand\n%s\nwant identical texts that name a line of run.go", everyText,
			registrationText)
	}
}

func TestReportContainsOptions(t *testing.T) {
	code, stdout, stderr := runSymmem(t, "verify", "--ranks=2", "--cases=2", "--rounds=1",
		"--size=1Ki", "--churn=16", "--seed=9", "--json")
	var report verify.Report
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || decoder.More() {
		t.Fatalf("Decode = %v, more output = %v, want one report:\n%s", err, decoder.More(), stdout)
	}
	if code != exitOK || stderr != "" || report.ElapsedMS <= 0 {
		t.Errorf("exit code %d, elapsed %v ms, standard error %q; want 0, a positive time and nothing",
			code, report.ElapsedMS, stderr)
	}
	report.ElapsedMS, report.Cases = 0, nil
	want := verify.Report{
		Backend: "host", Source: "symmem launch", Ranks: 2, Passed: 4, Check: "every",
		Placement: "creation", RequestedPath: "window", TakenPaths: "window", Churn: 16, Seed: 9,
		Rounds: 1, Groups: 1,
		Norms: verify.NormReport{Passed: 16},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestForwardedSignalDeterminesExitCode(t *testing.T) {
	for _, c := range []struct {
		name   string
		result launch.Result
		want   int
	}{
		{"signal ends ranks", launch.Result{
			Signal: syscall.SIGHUP, Exits: []launch.Exit{{Code: 129, Signal: syscall.SIGHUP}},
		}, 129},
		{"ranks handle signal and fail", launch.Result{
			Signal: syscall.SIGQUIT, Exits: []launch.Exit{{Code: 2}, {Code: 2}},
		}, 131},
		{"ranks handle signal and succeed", launch.Result{
			Signal: syscall.SIGTERM, FirstFailed: -1, Exits: []launch.Exit{{}},
		}, exitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := codeOf(exitErrorOf(&stderr, &c.result)); code != c.want || stderr.Len() > 0 {
				t.Fatalf("exit code %d, want %d; standard error %q", code, c.want, stderr.String())
			}
		})
	}
}

func codeOf(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitOK
}

func TestExitCodeIsLargestOfRanks(t *testing.T) {
	for _, c := range []struct {
		name  string
		exits []launch.Exit
		want  int
		text  string
	}{
		{"all ranks succeed", []launch.Exit{{}, {}}, exitOK, ""},
		{"a wrong sum on one rank", []launch.Exit{{}, {Code: 1}}, exitWrong, ""},
		{
			"a rank that could not run outweighs wrong sums",
			[]launch.Exit{{Code: 1}, {Code: 2}, {Code: 1}},
			exitFailed, "",
		},
		{
			"killed rank outweighs a wrong sum",
			[]launch.Exit{{Code: 1}, {Rank: 1, Code: 137, Signal: syscall.SIGKILL}},
			exitFailed,
			"rank 1",
		},
		{
			"rank killed by SIGTERM",
			[]launch.Exit{{Code: 2}, {Rank: 1, Code: 143, Signal: syscall.SIGTERM}},
			exitFailed, "rank 1",
		},
		{"an unknown code is printed", []launch.Exit{{Code: 66}}, exitFailed, "code 66"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := codeOf(exitErrorOf(&stderr, &launch.Result{Exits: c.exits}))
			if code != c.want || !strings.Contains(stderr.String(), c.text) {
				t.Fatalf("exit code %d, want %d; standard error %q", code, c.want, stderr.String())
			}
			if c.text == "" && stderr.Len() > 0 {
				t.Fatalf("standard error = %q; want nothing", stderr.String())
			}
		})
	}
}
