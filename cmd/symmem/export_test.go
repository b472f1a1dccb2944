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
	folder, redacted := writeTraces(t, noExtra), filepath.Join(t.TempDir(), "redacted")
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

	if code := export(redacted, "--redact", folder); code != exitIncomplete {
		t.Errorf("export --redact to a folder with files = exit code %d; want %d", code, exitIncomplete)
	}
}

// TestExportReplacesOnlyArchives checks that --perfetto leaves traces and other files alone.
func TestExportReplacesOnlyArchives(t *testing.T) {
	folder, outputs := writeTraces(t, noExtra), t.TempDir()
	trace, notes := filepath.Join(folder, "rank0.trace"), filepath.Join(outputs, "notes.txt")
	before, err := os.ReadFile(trace)
	if err == nil {
		err = os.WriteFile(notes, []byte("notes"), 0o600)
	}

	if err != nil {
		t.Fatal(err)
	}

	archive := filepath.Join(outputs, "run.zip")
	for _, c := range []struct {
		input, output string
		code          int
		want          string
	}{
		{folder, archive, exitOK, ""},
		{folder, archive, exitOK, ""},
		{folder, trace, exitIncomplete, "is not an archive"},
		{trace, trace, exitIncomplete, "is an input"},
		{folder, notes, exitIncomplete, "is not an archive"},
		{folder, outputs, exitIncomplete, "not a regular file"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"export", c.input, "--perfetto", c.output},
			strings.NewReader(""), &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("export %s --perfetto %s = %d, %s; want %d and %q", c.input, c.output, code, &errs,
				c.code, c.want)
		}
	}

	if after, err := os.ReadFile(trace); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the trace has changed: %v", err)
	}
}
