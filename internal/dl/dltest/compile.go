package dltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Compile builds a shared object from C source with gcc, in a temporary folder.
func Compile(t testing.TB, name, source string, flags ...string) string {
	t.Helper()
	folder := t.TempDir()
	code, path := filepath.Join(folder, "source.c"), filepath.Join(folder, name)
	if err := os.WriteFile(code, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}

	flags = append([]string{"-shared", "-fPIC", "-w", "-O1", "-pthread", "-o", path, code}, flags...)
	out, err := exec.CommandContext(t.Context(), "gcc", flags...).CombinedOutput()
	if err != nil {
		t.Fatalf("building %s with gcc: %v\n%s", name, err, out)
	}

	return path
}
