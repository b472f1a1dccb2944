package nccl

import (
	"os"
	"testing"

	"symmem/driver"
)

// needDevices skips a test that needs more GPUs than the machine has. The software GPU has enough,
// unless it was told to have fewer.
func needDevices(t *testing.T, n int) {
	t.Helper()
	have := devices(t)
	switch {
	case have >= n:
	case soft(t) && os.Getenv("SOFTGPU_DEVICES") == "":
		t.Fatalf("the software GPU has %d devices, and the test needs %d", have, n)
	default:
		t.Skipf("the machine has %d GPUs, and the test needs %d", have, n)
	}
}

// atMost is how many ranks a test has that makes do with less: as many as there are GPUs, and two
// where it will be skipped.
func atMost(t *testing.T, n int) int {
	t.Helper()
	return min(n, max(2, devices(t)))
}

// needDirect skips a test on GPUs whose links the direct path does not take. Anything else that
// keeps a group from it is a failure.
func needDirect(t *testing.T, of driver.Communicator) {
	t.Helper()
	c := of.(*communicator)
	if c.direct.none == "" {
		return
	}
	if err := linked(c.device.gpu, &c.device.self, c.members); err != nil {
		t.Skipf("the direct path does not take the links of these GPUs: %v", err)
	}
	t.Fatalf("the group has no direct path, though its GPUs are linked: %s", c.direct.none)
}
