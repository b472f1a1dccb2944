package nccl

import (
	"errors"
	"os"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
	"symmem/internal/sys/systest"
)

// TestTheProcessKeepsToOneCopy runs in a process of its own, because a library that is loaded
// stays, and this one has NCCL's name.
func TestTheProcessKeepsToOneCopy(t *testing.T) {
	const inside = "SYMMEM_TEST_OF_COPIES"
	if os.Getenv(inside) == "" {
		c := systest.Command(t, systest.Patience, os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), inside+"=1")
		if output, err := c.CombinedOutput(); err != nil {
			t.Errorf("in a process of its own: %v\n%s", err, output)
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
	for _, path := range []string{"", first} {
		library, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if library.Path() != first {
			t.Errorf("loading %q took %s, want %s", path, library.Path(), first)
		}
	}
	if _, err := Load(second); !errors.Is(err, ErrTwoCopies) {
		t.Errorf("another copy gives %v, want ErrTwoCopies", err)
	}
}
