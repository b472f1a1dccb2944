package live

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain fails if tests leak goroutines or descriptors. It ignores the connections of refused
// requests, which net/http keeps open for half a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(leaktest.Watch(m),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
