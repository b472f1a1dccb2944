package leaktest

import (
	"os"
	"strings"
	"testing"

	"symmem/internal/invariants"
	"symmem/internal/sys"
)

// tests is a run of tests by a function.
type tests func()

// Run runs the function.
func (f tests) Run() int {
	f()
	return 0
}

func TestWhatIsLeftOpenIsFound(t *testing.T) {
	f, err := sys.Memfd("symmem-test", sys.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &watched{tests: tests(func() {}), before: open()}
	if left := w.left(); len(left) > 0 {
		t.Fatalf("nothing was opened, but %q is left", left)
	}
	m, err := sys.Map(f, 0, sys.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	found := open()
	for what := range w.before {
		delete(found, what)
	}
	wants := []string{os.DevNull, "memory of /memfd:symmem-test"}
	if invariants.Enabled {
		wants = append(wants, "leaktest.TestWhatIsLeftOpenIsFound")
	}
	for _, want := range wants {
		matches := 0
		for what := range found {
			if strings.Contains(what, want) {
				matches++
			}
		}
		if matches != 1 {
			t.Errorf("%q is found %d times in %v", want, matches, found)
		}
	}
}
