package live

import (
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Watch(m)) }
