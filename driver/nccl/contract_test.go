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

// TestContract runs on the GPUs of the machine, or, where there are none, on the software GPU.
func TestContract(t *testing.T) {
	without := map[drivertest.Part]string{
		drivertest.Failures: "kernels that a GPU has been given run on",
	}
	if sharing() {
		without[drivertest.Anytime] = "these ranks are goroutines of one process and share GPUs: the " +
			"end of a group waits there for kernels that wait for other ranks"
	}
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: devices(t), Unordered: true,
		Paths: []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect},
		Slow:  soft(t) && !full(), Without: without,
	})
}

// ranksVariable is how many ranks tests have that share GPUs, as sharingVariable lets them.
const ranksVariable = "SYMMEM_TEST_RANKS"

// devices is how many ranks there is room for: one on each GPU, unless they share them.
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
	if !sharing() {
		return n
	}
	ranks, err := strconv.Atoi(cmp.Or(os.Getenv(ranksVariable), "0"))
	if err != nil {
		t.Fatalf("%s: %v", ranksVariable, err)
	}
	return max(n, ranks)
}
