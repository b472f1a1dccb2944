package proof

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestSettingsKeepUserVariables checks how the log variables that the user has set are combined
// with those that the log needs. Variables of the user are never changed. If they prevent the log,
// the settings say so.
func TestSettingsKeepUserVariables(t *testing.T) {
	tests := map[string]struct {
		env              map[string]string // variables of the user
		wantSet          string            // variables that newSettings sets, sorted
		wantFilePattern  string            // the user's name for the file, or ""
		wantLogRequested bool              // whether the user requests a log
		wantProblem      string            // part of the text; "" means no problem
	}{
		"no variables": {
			wantSet: "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
		},
		"log in a named file": {
			env: map[string]string{
				"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "init,tuning", "NCCL_DEBUG_FILE": "/x.%h",
			},
			wantFilePattern:  "/x.%h",
			wantLogRequested: true,
		},
		"log on standard output goes to a file": {
			env:              map[string]string{"NCCL_DEBUG": "TRACE"},
			wantSet:          "NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
			wantLogRequested: true,
		},
		"only warnings": {
			env:         map[string]string{"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"},
			wantProblem: "NCCL_DEBUG is WARN, so",
		},
		"other subsystems": {
			env:         map[string]string{"NCCL_DEBUG_SUBSYS": "INIT,NET"},
			wantSet:     "NCCL_DEBUG=INFO",
			wantProblem: "NCCL_DEBUG_SUBSYS is INIT,NET, so",
		},
		"all subsystems except TUNING": {
			env:         map[string]string{"NCCL_DEBUG_SUBSYS": "^TUNING"}, // ^ inverts the list
			wantSet:     "NCCL_DEBUG=INFO",
			wantProblem: "add TUNING",
		},
		"all subsystems except another": {
			env:     map[string]string{"NCCL_DEBUG_SUBSYS": "^NET"},
			wantSet: "NCCL_DEBUG=INFO",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSettings(func(name string) string { return tt.env[name] })
			var set []string
			for _, name := range slices.Sorted(maps.Keys(s.variables)) {
				set = append(set, name+"="+s.variables[name])
			}

			if got := strings.Join(set, " "); got != tt.wantSet {
				t.Errorf("variables = %q, want %q", got, tt.wantSet)
			}

			if s.filePattern != tt.wantFilePattern {
				t.Errorf("filePattern = %q, want %q", s.filePattern, tt.wantFilePattern)
			}

			if s.isLogRequested != tt.wantLogRequested {
				t.Errorf("isLogRequested = %v, want %v", s.isLogRequested, tt.wantLogRequested)
			}

			if tt.wantProblem == "" && s.problem != "" {
				t.Errorf("problem = %q, want none", s.problem)
			}

			if !strings.Contains(s.problem, tt.wantProblem) {
				t.Errorf("problem = %q, want a text with %q", s.problem, tt.wantProblem)
			}
		})
	}
}

// TestExpandPattern expands file names as NCCL does: %h is the host name up to the first dot, %p is
// the process ID, and %% is a percent sign.
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

	if got := expandPattern("%h", "odd%name/x", pid); got != "odd-name-x" {
		t.Errorf("expandPattern of an invalid host name = %q, want odd-name-x", got)
	}

	const path = "/tmp/50%/a"
	if got := expandPattern(escapePercent(path), "host", pid); got != path {
		t.Errorf("expandPattern of an escaped path = %q, want the path, %q", got, path)
	}
}

// clearVariables sets NCCL's log variables to "" for the duration of the test.
func clearVariables(t *testing.T) {
	t.Helper()
	for _, name := range []string{levelVariable, subsystemsVariable, fileVariable} {
		t.Setenv(name, "")
	}
}

// TestRecorderReadsLog starts a recorder without variables of the user, writes a line to its log as
// NCCL does, and reads the log.
func TestRecorderReadsLog(t *testing.T) {
	clearVariables(t)
	t.Setenv("TMPDIR", t.TempDir())
	r, err := Start()
	if err != nil {
		t.Fatal(err)
	}

	if log, err := r.Read(); err != nil || len(log) != 0 {
		t.Errorf("before the first line, Read = %+v, %v; want an empty log", log, err)
	}

	// The log is an unnamed file, so nothing would remain if the process were killed now.
	if remaining, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(remaining) > 0 {
		t.Errorf("TMPDIR contains %v (error %v), want nothing", remaining, err)
	}

	line := "h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R " +
		"nchannels 1 nthreads 512 nWorks 1\n"
	if err := os.WriteFile(r.file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}

	log, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}

	const elementBytes = 4
	for _, c := range []struct {
		call Collective
		want string
	}{
		{
			CollectiveOf("all_reduce", 2, elementBytes), // the call in the log
			"AllReduce 8 B: symmetric kernel AllReduce_AGxLL_R",
		},
		{
			CollectiveOf("AllReduce", 4, elementBytes),
			"AllReduce 16 B: not in NCCL's log",
		},
	} {
		if got := log.KernelsOf(c.call).String(); got != c.want {
			t.Errorf("KernelsOf(%+v) = %q, want %q", c.call, got, c.want)
		}
	}

	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	if info, err := os.Stat(r.file); err != nil || info.Size() > 0 {
		t.Errorf("after Close, Stat(%s) = %+v, %v; want an empty file", r.file, info, err)
	}
}

// TestCloseKeepsUserLog checks that Close does not empty a log that the user has requested with
// NCCL's variables.
func TestCloseKeepsUserLog(t *testing.T) {
	clearVariables(t)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(levelVariable, "INFO")
	r, err := Start()
	if err != nil {
		t.Fatal(err)
	}

	const line = "a line of the log\n"
	if err := os.WriteFile(r.file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	if text, err := os.ReadFile(r.file); err != nil || string(text) != line {
		t.Errorf("after Close, the log contains %q, %v; want %q", text, err, line)
	}
}

// TestProblemReportsUnreadableLog checks that Start creates no file if the user's variables name
// the log, and that Problem explains why this log cannot be read.
func TestProblemReportsUnreadableLog(t *testing.T) {
	clearVariables(t)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(fileVariable, "/dev/null")
	r, err := Start()
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(r.Problem(), "/dev/null, which cannot be read back") {
		t.Errorf("Problem() = %q, want a text about /dev/null", r.Problem())
	}

	remaining, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(remaining) > 0 {
		t.Errorf("TMPDIR contains %v (error %v), want nothing", remaining, err)
	}
}

// TestCollectiveOfUsesNCCLNames checks how names of operations in symmem and nccl-tests become
// names in NCCL's log, which has no barriers.
func TestCollectiveOfUsesNCCLNames(t *testing.T) {
	const count, elementBytes = 3, 2
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
