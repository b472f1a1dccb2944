package live

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

// TestMain fails if tests leak a goroutine or a descriptor. net/http lets a connection whose request
// it has refused end half a second later.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(leaktest.Watch(m),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
