package proof

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestSettingsKeepUserVariables(t *testing.T) {
	tests := map[string]struct {
		env      map[string]string // variables of the user
		set      string            // variables that newSettings sets, sorted
		pattern  string            // wanted settings.filePattern
		wantsLog bool              // wanted settings.isLogRequested
		problem  string            // part of the wanted settings.problem
	}{
		"no variables": {
			set: "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
		},
		"log in a named file": {
			env: map[string]string{
				"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "init,tuning", "NCCL_DEBUG_FILE": "/x.%h",
			},
			pattern: "/x.%h", wantsLog: true,
		},
		"log on standard output goes to a file": {
			env:      map[string]string{"NCCL_DEBUG": "TRACE"},
			set:      "NCCL_DEBUG_SUBSYS=" + defaultSubsystems,
			wantsLog: true,
		},
		"only warnings": {
			env:     map[string]string{"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"},
			problem: "NCCL_DEBUG is WARN, so",
		},
		"other subsystems": {
			env:     map[string]string{"NCCL_DEBUG_SUBSYS": "INIT,NET"},
			set:     "NCCL_DEBUG=INFO",
			problem: "NCCL_DEBUG_SUBSYS is INIT,NET, so",
		},
		"all subsystems except TUNING": {
			env:     map[string]string{"NCCL_DEBUG_SUBSYS": "^TUNING"},
			set:     "NCCL_DEBUG=INFO",
			problem: "add TUNING",
		},
		"all subsystems except another": {
			env: map[string]string{"NCCL_DEBUG_SUBSYS": "^NET"},
			set: "NCCL_DEBUG=INFO",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSettings(func(name string) string { return tt.env[name] })
			var set []string
			for _, name := range slices.Sorted(maps.Keys(s.variables)) {
				set = append(set, name+"="+s.variables[name])
			}
			if got := strings.Join(set, " "); got != tt.set {
				t.Errorf("variables = %q, want %q", got, tt.set)
			}
			if s.filePattern != tt.pattern || s.isLogRequested != tt.wantsLog {
				t.Errorf("filePattern = %q, isLogRequested = %v; want %q, %v", s.filePattern,
					s.isLogRequested, tt.pattern, tt.wantsLog)
			}
			hasProblem := strings.Contains(s.problem, tt.problem)
			if tt.problem == "" {
				hasProblem = s.problem == ""
			}
			if !hasProblem {
				t.Errorf("problem = %q, want %q", s.problem, tt.problem)
			}
		})
	}
}

func TestExpandPattern(t *testing.T) {
	for pattern, want := range map[string]string{
		"/tmp/nccl.%h.%p": "/tmp/nccl.gpu7.42", "100%%.%p": "100%.42", "%d%p": "%d42", "a%": "a%",
		"%%h": "%h",
	} {
		if got := expandPattern(pattern, "gpu7.cluster.example", 42); got != want {
			t.Errorf("expandPattern(%q) = %q, want %q", pattern, got, want)
		}
	}
	if got := expandPattern("%h", "odd%name/x", 1); got != "odd-name-x" {
		t.Errorf("expandPattern of an invalid host name = %q, want odd-name-x", got)
	}
	if got := expandPattern(escapePercent("/tmp/50%/a"), "h", 1); got != "/tmp/50%/a" {
		t.Errorf("expandPattern of an escaped path = %q, want the path", got)
	}
}

// clearVariables sets NCCL's log variables to "" for the duration of the test.
func clearVariables(t *testing.T) {
	t.Helper()
	for _, name := range []string{levelVariable, subsystemsVariable, fileVariable} {
		t.Setenv(name, "")
	}
}

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
	for want, call := range map[string]Collective{
		"AllReduce 8 B: symmetric kernel AllReduce_AGxLL_R": CollectiveOf("all_reduce", 2, 4),
		"AllReduce 16 B: not in NCCL's log":                 CollectiveOf("AllReduce", 4, 4),
	} {
		if got := log.KernelsOf(call).String(); got != want {
			t.Errorf("KernelsOf(%+v) = %q, want %q", call, got, want)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(r.file); err != nil || info.Size() > 0 {
		t.Errorf("after Close, Stat(%s) = %+v, %v; want an empty file", r.file, info, err)
	}
}

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

func TestCollectiveOfUsesNCCLNames(t *testing.T) {
	for operation, want := range map[string]string{
		"all_reduce": "AllReduce", "ReduceScatter": "ReduceScatter", "AllToAll": "AlltoAll",
		"alltoall": "AlltoAll", "broadcast": "Broadcast", "Barrier": "Barrier",
	} {
		if got := CollectiveOf(operation, 3, 2); got != (Collective{want, 6}) {
			t.Errorf("CollectiveOf(%s, 3, 2) = %v, want %s of 6 bytes", operation, got, want)
		}
	}
}
