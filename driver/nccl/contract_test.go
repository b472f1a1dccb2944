package nccl

import (
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// TestContract runs on the GPUs of the machine, or, where there are none, on the software GPU.
func TestContract(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: devices(t), Unordered: true,
		Paths: []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect},
		Slow:  soft(t) && !full(),
	})
}

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
	return n
}
