package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestWhatNCCLLogsIsNotInTheReport has NCCL write its log, which it does to standard output.
func TestWhatNCCLLogsIsNotInTheReport(t *testing.T) {
	softly(t)
	t.Setenv("NCCL_DEBUG", "INFO")
	t.Setenv("NCCL_DEBUG_SUBSYS", "TUNING")
	t.Setenv("SYMMEM_PATH", "plain")
	for _, command := range []string{
		"verify --rounds=1",
		"bench collective --sizes=1K --path=plain",
		"soak --rounds=1 --steps=20 --max-bytes=64K",
	} {
		args := append(strings.Fields(command), "--backend=nccl", "--ranks=2", "--json")
		code, stdout, stderr := symmemRun(t, args...)
		if code != exitOK || stdout == "" {
			t.Errorf("%s: exit code %d, standard output %q\n%s", command, code, stdout, stderr)
		}
		for line := range strings.Lines(stdout) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: standard output has %q", command, line)
				break
			}
		}
		if !strings.Contains(stderr, "NCCL INFO") {
			t.Errorf("%s: nothing of NCCL's log is on standard error:\n%.500s", command, stderr)
		}
	}
}
