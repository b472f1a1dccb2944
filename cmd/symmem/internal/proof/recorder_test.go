package proof

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// These tests cover the Recorder, which makes NCCL write a log and reads it. NCCL reads three
// environment variables, the log variables:
//
//	NCCL_DEBUG         the level of detail, such as INFO
//	NCCL_DEBUG_SUBSYS  the parts of NCCL to log, such as INIT,TUNING
//	NCCL_DEBUG_FILE    the pattern of the log's file name, such as /tmp/nccl.%h.%p
//
// The Recorder needs level INFO and the part TUNING. It sets the variables that the user has not
// set. If the user has set NCCL_DEBUG=WARN, it cannot get a log, and reports a problem.

// settingsTest is a case of TestSettingsKeepUserVariables.
type settingsTest struct {
	env             map[string]string // variables of the user
	wantSet         string            // variables that newSettings sets, sorted
	wantFilePattern string            // the user's NCCL_DEBUG_FILE, or ""
	userWantsLog    bool              // whether the user requests a log
	wantProblem     string            // part of the problem; "" means that there is none
}

// TestSettingsKeepUserVariables checks that newSettings sets only log variables that the user has
// not set. If a variable of the user prevents the log, the settings contain a problem.
func TestSettingsKeepUserVariables(t *testing.T) {
	tests := map[string]settingsTest{
		"no variables": {
			wantSet: "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
		},
		"log in a named file": {
			env: map[string]string{
				"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "init,tuning", "NCCL_DEBUG_FILE": "/x.%h",
			},
			wantFilePattern: "/x.%h",
			userWantsLog:    true,
		},
		"log without a named file": {
			env:          map[string]string{"NCCL_DEBUG": "TRACE"}, // a level above INFO
			wantSet:      "NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
			userWantsLog: true,
		},
		"only warnings": {
			env:         map[string]string{"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"},
			wantProblem: "NCCL_DEBUG is WARN, so",
		},
		"list without TUNING": {
			env:         map[string]string{"NCCL_DEBUG_SUBSYS": "INIT,NET"},
			wantSet:     "NCCL_DEBUG=INFO",
			wantProblem: "NCCL_DEBUG_SUBSYS is INIT,NET, so",
		},
		"all parts except TUNING": {
			env:         map[string]string{"NCCL_DEBUG_SUBSYS": "^TUNING"}, // ^ inverts the list
			wantSet:     "NCCL_DEBUG=INFO",
			wantProblem: "add TUNING",
		},
		"all parts except NET": {
			env:     map[string]string{"NCCL_DEBUG_SUBSYS": "^NET"},
			wantSet: "NCCL_DEBUG=INFO",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			getenv := func(name string) string { return test.env[name] }
			checkSettings(t, newSettings(getenv), test)
		})
	}
}

// checkSettings compares settings with those that a case wants.
func checkSettings(t *testing.T, got settings, want settingsTest) {
	t.Helper()
	var set []string
	for _, name := range slices.Sorted(maps.Keys(got.variables)) {
		set = append(set, name+"="+got.variables[name])
	}

	if gotSet := strings.Join(set, " "); gotSet != want.wantSet {
		t.Errorf("got variables %q, want %q", gotSet, want.wantSet)
	}

	if got.filePattern != want.wantFilePattern {
		t.Errorf("got filePattern %q, want %q", got.filePattern, want.wantFilePattern)
	}

	if got.userWantsLog != want.userWantsLog {
		t.Errorf("got userWantsLog %v, want %v", got.userWantsLog, want.userWantsLog)
	}

	if want.wantProblem == "" && got.problem != "" {
		t.Errorf("got problem %q, want none", got.problem)
	}

	if !strings.Contains(got.problem, want.wantProblem) {
		t.Errorf("got problem %q, want a text with %q", got.problem, want.wantProblem)
	}
}

// TestExpandPattern checks that a file name is expanded as by NCCL: %h is the host name up to the
// first dot, %p is the process ID, and %% is a percent sign. Other percent signs remain.
func TestExpandPattern(t *testing.T) {
	const pid = 42
	for pattern, want := range map[string]string{
		"/tmp/nccl.%h.%p": "/tmp/nccl.gpu7.42",
		"100%%.%p":        "100%.42",
		"%d%p":            "%d42",
		"a%":              "a%",
		"%%h":             "%h",
	} {
		if got := expandPattern(pattern, "gpu7.cluster.example", pid); got != want {
			t.Errorf("expandPattern(%q) = %q, want %q", pattern, got, want)
		}
	}

	// A host name cannot add a percent sign or a folder to the file name.
	if got := expandPattern("%h", "odd%name/x", pid); got != "odd-name-x" {
		t.Errorf("expandPattern of the host odd%%name/x = %q, want odd-name-x", got)
	}

	const path = "/tmp/50%/a"
	if got := expandPattern(escapePercent(path), "host", pid); got != path {
		t.Errorf("expandPattern of the escaped path = %q, want the path, %q", got, path)
	}
}

// clearVariables sets the log variables to "" for the duration of a test.
func clearVariables(t *testing.T) {
	t.Helper()
	for _, name := range []string{levelVariable, subsystemsVariable, fileVariable} {
		t.Setenv(name, "")
	}
}

// startRecorder starts a Recorder in an environment in which the user has set only the given
// variable, or none if its name is "". TMPDIR is a new folder, which it returns.
func startRecorder(t *testing.T, name, value string) (r *Recorder, temporaryFolder string) {
	t.Helper()
	clearVariables(t)
	temporaryFolder = t.TempDir()
	t.Setenv("TMPDIR", temporaryFolder)
	if name != "" {
		t.Setenv(name, value)
	}

	r, err := Start()
	if err != nil {
		t.Fatal(err)
	}

	return r, temporaryFolder
}

// checkEmptyFolder checks that a folder contains nothing.
func checkEmptyFolder(t *testing.T, folder string) {
	t.Helper()
	remaining, err := os.ReadDir(folder)
	if err != nil || len(remaining) > 0 {
		t.Errorf("%s contains %v (error %v), want nothing", folder, remaining, err)
	}
}

// writeLog replaces the log of a Recorder.
func writeLog(t *testing.T, r *Recorder, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRecorderReadsLog checks that the Recorder reads a line that NCCL wrote, and that Close
// empties the log. The user has set no log variable, so the log is temporary.
func TestRecorderReadsLog(t *testing.T) {
	r, temporaryFolder := startRecorder(t, "", "")
	if log, err := r.Read(); err != nil || len(log) != 0 {
		t.Errorf("before the first line, Read = %+v, %v; want an empty log", log, err)
	}

	// The log is a file without a name. It would disappear if this process were killed.
	checkEmptyFolder(t, temporaryFolder)
	writeLog(t, r, "h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R "+
		"nchannels 1 nthreads 512 nWorks 1\n")
	log, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}

	checkKernels(t, log)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	info, err := os.Stat(r.file)
	if err != nil || info.Size() > 0 {
		t.Errorf("after Close, Stat(%s) = %+v, %v; want an empty file", r.file, info, err)
	}
}

// checkKernels checks that a log has the kernel of an AllReduce of 8 bytes, and none for 16 bytes.
func checkKernels(t *testing.T, log Log) {
	t.Helper()
	const elementBytes = 4
	for _, c := range []struct {
		call Collective
		want string
	}{
		{
			call: CollectiveOf("all_reduce", 2, elementBytes),
			want: "AllReduce 8 B: symmetric kernel AllReduce_AGxLL_R",
		},
		{
			call: CollectiveOf("AllReduce", 4, elementBytes),
			want: "AllReduce 16 B: not in NCCL's log",
		},
	} {
		if got := log.KernelsOf(c.call).String(); got != c.want {
			t.Errorf("KernelsOf(%+v) = %q, want %q", c.call, got, c.want)
		}
	}
}

// TestCloseKeepsUserLog checks that Close does not empty a log that the user has requested.
func TestCloseKeepsUserLog(t *testing.T) {
	r, _ := startRecorder(t, levelVariable, "INFO")
	const line = "a line of the log\n"
	writeLog(t, r, line)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(r.file)
	if err != nil || string(text) != line {
		t.Errorf("after Close, the log contains %q, %v; want %q", text, err, line)
	}
}

// TestProblemReportsUnreadableLog checks that Problem explains why the log cannot be read, if the
// user's variable names /dev/null. Start must not create another file.
func TestProblemReportsUnreadableLog(t *testing.T) {
	r, temporaryFolder := startRecorder(t, fileVariable, "/dev/null")
	const want = "/dev/null, which cannot be read back"
	if got := r.Problem(); !strings.Contains(got, want) {
		t.Errorf("Problem() = %q, want a text with %q", got, want)
	}

	checkEmptyFolder(t, temporaryFolder)
}

// TestCollectiveOfUsesNCCLNames checks that names of operations in symmem and nccl-tests become
// those in NCCL's log. A barrier, which NCCL does not have, keeps its name.
func TestCollectiveOfUsesNCCLNames(t *testing.T) {
	const count = 3
	const elementBytes = 2
	for operation, wantOperation := range map[string]string{
		"all_reduce":    "AllReduce",
		"ReduceScatter": "ReduceScatter",
		"AllToAll":      "AlltoAll",
		"alltoall":      "AlltoAll",
		"broadcast":     "Broadcast",
		"Barrier":       "Barrier",
	} {
		want := Collective{Operation: wantOperation, Bytes: count * elementBytes}
		if got := CollectiveOf(operation, count, elementBytes); got != want {
			t.Errorf("CollectiveOf(%s, %d, %d) = %v, want %v", operation, count, elementBytes, got, want)
		}
	}
}
