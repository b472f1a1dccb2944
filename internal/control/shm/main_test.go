package shm

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control/controltest"
	"symmem/internal/leaktest"
)

// TestMain runs the tests. A process that a test has started runs one rank of that test instead.
func TestMain(m *testing.M) {
	controltest.Main(joinAsMember)
	goleak.VerifyTestMain(leaktest.Watch(m))
}
