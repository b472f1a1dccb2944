package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain runs the tests, or, in a process that a test has started, one rank of its fleet.
func TestMain(m *testing.M) {
	if os.Getenv(sceneVariable) != "" {
		os.Exit(playRank())
	}
	goleak.VerifyTestMain(leaktest.Watch(m))
}
