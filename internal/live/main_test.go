package live

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain fails if tests leak a goroutine or a descriptor. After a refused request, net/http keeps
// the connection for half a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(leaktest.Watch(m),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
