package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestNCCLsLogIsNotInTheReport makes NCCL write its log, which goes to standard output by default.
func TestNCCLsLogIsNotInTheReport(t *testing.T) {
	softly(t)
	t.Setenv("NCCL_DEBUG", "INFO")
	t.Setenv("NCCL_DEBUG_SUBSYS", "TUNING")
	t.Setenv("SYMMEM_PATH", "plain")
	for _, command := range []string{
		"verify --rounds=1",
		"bench collective --sizes=1K --path=plain",
		"verify --for=10m --rounds=1 --steps=20 --max-bytes=64K",
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

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range []string{"help", "verify --help", "version", "version --json"} {
		var stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(line), nil, full, &stderr)
		if said := stderr.String(); code != exitUsage || strings.Contains(said, "Run 'symmem") ||
			strings.Count(said, "no space left on device") != 1 {
			t.Errorf("%s: exit code %d, %q", line, code, said)
		}
	}
}
