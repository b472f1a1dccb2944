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

// TestContract runs the driver contract on the machine's GPUs. Without GPUs, it uses the software
// GPU.
func TestContract(t *testing.T) {
	without := map[drivertest.Part]string{
		drivertest.Failures: "queued kernels cannot be canceled",
	}
	if sharingEnabled() {
		without[drivertest.Anytime] = "the ranks are goroutines that share GPUs, so " +
			"ending a group waits for kernels that wait for other ranks"
	}
	const all = "sum prod min max avg"
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: maxRanks(t), Unordered: true,
		Paths: []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect},
		Slow:  soft(t) && !full(), Without: without,
		Reductions: map[driver.DataType]string{
			driver.Float64: all, driver.Float32: all, driver.Float16: all, driver.BFloat16: all,
			driver.Int8: all, driver.Uint8: all, driver.Int16: "", driver.Uint16: "", driver.Int32: all,
			driver.Uint32: all, driver.Int64: all, driver.Uint64: all,
		},
	})
}

// ranksVariable names the environment variable with the number of ranks for tests whose ranks share
// GPUs (sharingVariable).
const ranksVariable = "SYMMEM_TEST_RANKS"

// maxRanks returns the largest number of ranks that a test can use. It is the number of GPUs, or
// more if ranks share GPUs.
func maxRanks(t *testing.T) int {
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
