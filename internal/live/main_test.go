package live

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain fails if tests leak goroutines or file descriptors. It ignores connections whose
// requests were refused, because net/http keeps these open for half a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(leaktest.Watch(m),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
