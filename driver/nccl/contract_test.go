package nccl

import (
	"cmp"
	"os"
	"strconv"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// TestContract runs on the machine's GPUs, or on the software GPU if it has none.
func TestContract(t *testing.T) {
	without := map[drivertest.Part]string{
		drivertest.Failures: "queued kernels cannot be canceled",
	}
	if sharingEnabled() {
		without[drivertest.Anytime] = "the ranks are goroutines of one process and share GPUs: " +
			"ending a group waits for kernels that wait for other ranks"
	}
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: devices(t), Unordered: true,
		Paths: []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect},
		Slow:  soft(t) && !full(), Without: without,
	})
}

// ranksVariable is an environment variable with the number of ranks of tests that share GPUs
// (sharingVariable).
const ranksVariable = "SYMMEM_TEST_RANKS"

// devices returns the largest number of ranks of a test: one per GPU, unless ranks share GPUs.
func devices(t *testing.T) int {
	t.Helper()
	gpus, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	n, err := gpus.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	if !sharingEnabled() {
		return n
	}
	ranks, err := strconv.Atoi(cmp.Or(os.Getenv(ranksVariable), "0"))
	if err != nil {
		t.Fatalf("%s: %v", ranksVariable, err)
	}
	return max(n, ranks)
}
