package symmem_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain runs the tests and fails if they leak a goroutine, a descriptor or a mapping. In a
// process that a test has started as a rank, TestMain runs the rank instead.
func TestMain(m *testing.M) {
	if os.Getenv(isolatedVariable) != "" {
		os.Exit(runIsolatedRank())
	}

	if os.Getenv(firstCallVariable) != "" {
		os.Exit(runFirstCallProcess())
	}

	if os.Getenv(agreeingVariable) != "" {
		os.Exit(runAgreeingRank())
	}

	if os.Getenv(stoppedVariable) != "" {
		os.Exit(runStoppingRank())
	}

	if os.Getenv(watchedVariable) != "" {
		os.Exit(runWatchedRank())
	}

	if os.Getenv(victimVariable) != "" {
		os.Exit(runLosingRank())
	}

	if os.Getenv(backendVariable) == "nccl" && os.Getenv("SYMMEM_CUDA") == "" {
		// On a real GPU, CUDA and NCCL keep descriptors until the process exits.
		goleak.VerifyTestMain(m)
		return
	}

	goleak.VerifyTestMain(leaktest.Watch(m))
}
