package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain runs the tests, or one rank in a process that a test has started.
func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(runRank())
	}
	goleak.VerifyTestMain(leaktest.Watch(m))
}
