package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

func TestChooseWithOneVisibleGPU(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	if !inChildProcess(t, "SOFTGPU_DEVICES=1", "SOFTGPU_NCCL=23203") {
		return
	}
	checkChoices(t, []choice{
		{0, 0, 0},
		{0, 3, 0}, // each rank sees only its own GPU
		{1, 0, 0},
		{1, 3, 0},
		{2, 0, -1},
		{2, 1, -1},
	})
}

func TestChooseSpreadsRanksOverSharedGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingVariable+"=1") {
		return
	}
	checkChoices(t, []choice{
		{0, 1, 1},
		{0, 2, 0},
		{0, 5, 1},
		{1, 5, 0},
		{3, 1, -1},
	})
}

func TestChooseRefusesMoreRanksThanGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingVariable+"=") {
		return
	}
	checkChoices(t, []choice{{0, 1, 1}, {0, 2, -1}})
}

// choice is an input of chooseDevice with the expected GPU, or -1 for an error.
type choice struct{ device, localRank, want int }

func checkChoices(t *testing.T, choices []choice) {
	t.Helper()
	gpus, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range choices {
		got, err := chooseDevice(gpus, &driver.Config{Device: c.device, LocalRank: c.localRank})
		switch {
		case c.want < 0 && !errors.Is(err, driver.ErrUnsupported):
			t.Errorf("chooseDevice(device %d, local rank %d) = %v, want ErrUnsupported", c.device,
				c.localRank, err)
		case c.want >= 0 && (err != nil || got.Ordinal() != c.want):
			t.Errorf("chooseDevice(device %d, local rank %d) = GPU %d, %v; want GPU %d", c.device,
				c.localRank, got.Ordinal(), err, c.want)
		}
	}
}

func openSingleRank(t *testing.T) *Device {
	t.Helper()
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*Device)
}

// TestLongestTimeoutOfOpenGroups changes a group's timeout, because closing a stream waits for
// twice the longest timeout.
func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	d := openSingleRank(t)
	base := d.longestTimeout()
	limit := driver.NewLimit(time.Hour)
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "g", Ranks: []int{0}, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	for _, timeout := range []time.Duration{base / 2, 2 * base} {
		limit.Set(timeout)
		if got, want := d.longestTimeout(), max(base, timeout); got != want {
			t.Errorf("longestTimeout() = %v with a group timeout of %v; want %v", got, timeout, want)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
