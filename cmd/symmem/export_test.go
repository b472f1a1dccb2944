package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExportRedact redacts traces with call sites, and checks that symmem diff can still read them.
func TestExportRedact(t *testing.T) {
	folder, redacted := writeTraces(t, -1), filepath.Join(t.TempDir(), "redacted")
	export := func(args ...string) int {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"export"}, args...), strings.NewReader(""), &out, &errs)
		t.Logf("export %v: %s%s", args, &out, &errs)
		return code
	}
	if code := export(folder, "--redact", redacted); code != exitOK {
		t.Fatalf("export --redact = exit code %d; want 0", code)
	}
	for _, name := range []string{"rank0.trace", "rank1.trace", "rank2.trace"} {
		b, err := os.ReadFile(filepath.Join(redacted, name))
		if err != nil || bytes.Contains(b, []byte("diff_trace_test.go")) {
			t.Errorf("%s contains a call site or is missing: %v", name, err)
		}
	}
	if code, out, errs := runDiff(t, redacted); code != exitOK {
		t.Errorf("diff of redacted traces = exit code %d; want 0\n%s%s", code, out, errs)
	}
	if code := export(redacted, "--redact", folder); code != exitFailed {
		t.Errorf("export --redact to a folder with files = exit code %d; want %d", code, exitFailed)
	}
}
