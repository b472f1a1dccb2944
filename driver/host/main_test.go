package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control/controltest"
	"symmem/internal/leaktest"
)

// TestMain runs the tests, or, in a process that a test has started, one rank of its fleet.
func TestMain(m *testing.M) {
	controltest.Main(joinAsGuest)
	if os.Getenv(sceneVariable) != "" {
		os.Exit(playRank())
	}
	goleak.VerifyTestMain(leaktest.Watch(m))
}
