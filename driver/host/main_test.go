package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(runRank())
	}

	goleak.VerifyTestMain(leaktest.Watch(m))
}
