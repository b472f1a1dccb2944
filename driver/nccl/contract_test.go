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

// TestContract runs the driver contract on the machine's GPUs, or on the software GPU if it has
// none.
func TestContract(t *testing.T) {
	missing := map[drivertest.Part]string{
		drivertest.Failures: "queued kernels cannot be canceled",
	}
	if isSharingEnabled() {
		missing[drivertest.Anytime] = "the ranks are goroutines that share GPUs, so " +
			"tearing down a group waits for kernels that wait for other ranks"
	}

	const integers, floats = "sum prod min max avg", "sum prod min max avg premul_sum"
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: maxRanks(t), Unordered: true,
		Paths: []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect},
		Slow:  usesSoftGPU(t) && !runsAllCases(), Missing: missing,
		Reductions: map[driver.DataType]string{
			driver.Float64: floats, driver.Float32: floats, driver.Float16: floats, driver.BFloat16: floats,
			driver.Int8: integers, driver.Uint8: integers, driver.Int16: "", driver.Uint16: "",
			driver.Int32: integers, driver.Uint32: integers, driver.Int64: integers, driver.Uint64: integers,
		},
	})
}

// ranksVariable is the environment variable that holds the number of ranks for tests whose ranks
// share GPUs (sharingVariable).
const ranksVariable = "SYMMEM_TEST_RANKS"

// maxRanks returns the largest number of ranks that a test can use. This is the number of GPUs,
// unless ranks share GPUs and ranksVariable holds a larger number.
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

	if !isSharingEnabled() {
		return n
	}

	ranks, err := strconv.Atoi(cmp.Or(os.Getenv(ranksVariable), "0"))
	if err != nil {
		t.Fatalf("%s: %v", ranksVariable, err)
	}

	return max(n, ranks)
}
