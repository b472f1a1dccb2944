package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNCCLLogIsNotInReport enables NCCL's log, which NCCL writes to standard output by default. The
// command must redirect it to standard error.
func TestNCCLLogIsNotInReport(t *testing.T) {
	useSoftwareGPU(t)
	t.Setenv("NCCL_DEBUG", "INFO")
	t.Setenv("NCCL_DEBUG_SUBSYS", "TUNING")
	t.Setenv("SYMMEM_PATH", "plain")
	for _, command := range []string{
		"verify --rounds=1",
		"bench collective --sizes=1K --path=plain",
		"verify --for=10m --rounds=1 --steps=20 --max-bytes=64K",
	} {
		args := append(strings.Fields(command), "--backend=nccl", "--ranks=2", "--json")
		code, stdout, stderr := runSymmem(t, args...)
		if code != exitOK || stdout == "" {
			t.Errorf("%s: exit code %d, standard output %q; want 0 and a report\n%s",
				command, code, stdout, stderr)
		}

		for line := range strings.Lines(stdout) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: standard output has the line %q; want JSON only", command, line)
				break
			}
		}

		if !strings.Contains(stderr, "NCCL INFO") {
			t.Errorf("%s: standard error does not contain NCCL's log:\n%.500s", command, stderr)
		}
	}
}

func TestOutputErrorIsReported(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	archive := filepath.Join(t.TempDir(), "run.zip")
	export := fmt.Sprintf("export %s --perfetto %s", writeTraces(t, noExtra), archive)
	for _, line := range []string{"help", "verify --help", "version", "version --json", export} {
		var stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(line), nil, full, &stderr)
		reported := stderr.String()
		if code != exitIncomplete || strings.Contains(reported, "Run 'symmem") ||
			strings.Count(reported, "no space left on device") != 1 {
			t.Errorf("%s: exit code %d, standard error %q; want code 2 and the error once", line, code,
				reported)
		}
	}
}
