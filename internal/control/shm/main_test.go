package shm

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control/controltest"
	"symmem/internal/leaktest"
)

// TestMain runs the tests or, in a process started by a test, one rank of that test.
func TestMain(m *testing.M) {
	controltest.Main(joinAsMember)
	goleak.VerifyTestMain(leaktest.Watch(m))
}
