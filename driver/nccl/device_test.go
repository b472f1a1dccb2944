package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// TestChooseWithOneVisibleGPU checks that chooseDevice ignores the local rank (the rank's number
// on its machine) if the process sees only one GPU: the launcher has then chosen a GPU for each
// rank.
func TestChooseWithOneVisibleGPU(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	const recentNCCL = "SOFTGPU_NCCL=23203" // 2.32.3
	if !inChildProcess(t, "SOFTGPU_DEVICES=1", recentNCCL) {
		return
	}

	checkChoices(t, []choice{
		{device: 0, localRank: 0, want: 0},
		{device: 0, localRank: 3, want: 0},
		{device: 1, localRank: 0, want: 0},
		{device: 1, localRank: 3, want: 0},
		{device: 2, localRank: 0, want: noGPU},
		{device: 2, localRank: 1, want: noGPU},
	})
}

// TestChooseSpreadsRanksOverSharedGPUs checks that local ranks take turns on the GPUs if NCCL
// permits ranks to share a GPU.
func TestChooseSpreadsRanksOverSharedGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingVariable+"=1") {
		return
	}

	checkChoices(t, []choice{
		{device: 0, localRank: 1, want: 1},
		{device: 0, localRank: 2, want: 0},
		{device: 0, localRank: 5, want: 1},
		{device: 1, localRank: 5, want: 0},
		{device: 3, localRank: 1, want: noGPU},
	})
}

// TestChooseRefusesMoreRanksThanGPUs checks that chooseDevice returns an error for a local rank
// without a GPU if ranks cannot share GPUs.
func TestChooseRefusesMoreRanksThanGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	sharingDisabled := sharingVariable + "="
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingDisabled) {
		return
	}

	checkChoices(t, []choice{
		{device: 0, localRank: 1, want: 1},
		{device: 0, localRank: 2, want: noGPU},
	})
}

// choice is an input of chooseDevice with the ordinal of the expected GPU. device is
// driver.Config.Device: 0 selects a GPU by the local rank, and 1 is the first GPU.
type choice struct{ device, localRank, want int }

// noGPU in choice.want expects ErrUnsupported.
const noGPU = -1

// checkChoices calls chooseDevice for each choice, and fails the test if it returns another GPU.
func checkChoices(t *testing.T, choices []choice) {
	t.Helper()
	gpus, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range choices {
		got, err := chooseDevice(gpus, &driver.Config{Device: c.device, LocalRank: c.localRank})
		if c.want == noGPU {
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("chooseDevice(device %d, local rank %d) = %v, want ErrUnsupported", c.device,
					c.localRank, err)
			}

			continue
		}

		if err != nil {
			t.Errorf("chooseDevice(device %d, local rank %d) = %v, want GPU %d", c.device,
				c.localRank, err, c.want)
		} else if got.Ordinal() != c.want {
			t.Errorf("chooseDevice(device %d, local rank %d) = GPU %d, want GPU %d", c.device,
				c.localRank, got.Ordinal(), c.want)
		}
	}
}

// openSingleRank opens a world of one rank, which is closed at the end of the test. It stops the
// test if that fails.
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

// TestLongestTimeoutOfOpenGroups checks that longestTimeout, which limits the wait in
// Stream.Close, follows changes of a group's timeout.
func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	d := openSingleRank(t)
	base := d.longestTimeout()          // that of the device, without groups
	limit := driver.NewLimit(time.Hour) // changed below
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "g", Ranks: []int{0}, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}

	for _, timeout := range []time.Duration{base / 2, 2 * base} {
		limit.Set(timeout)
		if got, want := d.longestTimeout(), max(base, timeout); got != want {
			t.Errorf("longestTimeout() with a group timeout of %v = %v, want %v", timeout, got, want)
		}
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
