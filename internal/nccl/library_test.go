package nccl

import (
	"os"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
	"symmem/internal/sys/systest"
)

// TestLoadPrefersResidentCopy runs in a separate process, because it loads a library with NCCL's
// name, which cannot be unloaded.
func TestLoadPrefersResidentCopy(t *testing.T) {
	const childVariable = "SYMMEM_TEST_OF_COPIES"
	if os.Getenv(childVariable) == "" {
		c := systest.Command(t, systest.Patience, os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), childVariable+"=1")
		if output, err := c.CombinedOutput(); err != nil {
			t.Errorf("running the test in a separate process: %v\n%s", err, output)
		}

		return
	}

	first := dltest.Compile(t, "libfirst.so", dltest.Source(t, prelude, declarations),
		"-Wl,-soname,"+soname)
	second := compile(t, "22809", declarations)
	if _, err := dl.Open(first); err != nil {
		t.Fatal(err)
	}

	t.Setenv(PathVariable, second)
	library, err := Load()
	if err != nil {
		t.Fatal(err)
	}

	if library.Path() != first {
		t.Errorf("Load opened %s, want %s", library.Path(), first)
	}
}
