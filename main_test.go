package symmem_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain runs the tests and fails if any of them leaves a goroutine, a descriptor or a mapping
// behind. In a process that a test started as a rank it is that rank instead.
func TestMain(m *testing.M) {
	if os.Getenv(aloneVariable) != "" {
		os.Exit(beAlone())
	}
	if os.Getenv(firstVariable) != "" {
		os.Exit(beFirst())
	}
	if os.Getenv(agreeingVariable) != "" {
		os.Exit(beAgreeing())
	}
	if os.Getenv(stoppedVariable) != "" {
		os.Exit(beStopped())
	}
	if os.Getenv(victimVariable) != "" {
		os.Exit(beRank())
	}
	goleak.VerifyTestMain(leaktest.Watch(m))
}
