package leaktest

import (
	"os"
	"strings"
	"testing"

	"symmem/internal/invariants"
	"symmem/internal/sys"
)

// passingTests is a TestRunner without tests.
type passingTests struct{}

func (passingTests) Run() int { return 0 }

func TestLeaksAreFound(t *testing.T) {
	f, err := sys.Memfd("symmem-test", sys.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &leakCheckedTests{tests: passingTests{}, openBefore: countResources()}
	if leaks := w.findLeaks(); len(leaks) > 0 {
		t.Fatalf("got leaks %q before any resource was opened", leaks)
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
	found := countResources()
	for resource := range w.openBefore {
		delete(found, resource)
	}

	wants := []string{os.DevNull, "memory of /memfd:symmem-test"}
	if invariants.Enabled {
		wants = append(wants, "leaktest.TestLeaksAreFound")
	}

	for _, want := range wants {
		matches := 0
		for resource := range found {
			if strings.Contains(resource, want) {
				matches++
			}
		}

		if matches != 1 {
			t.Errorf("found %d matches for %q in %v, want 1", matches, want, found)
		}
	}
}
