package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// chooseDevice chooses a GPU for a rank. For example, a process sees GPUs 0 and 1. If the program
// sets driver.Config.Device to 2, it gets the second GPU, which is GPU 1. If Device is 0, the local
// rank (the rank's number on its machine) selects a GPU: local rank 0 gets GPU 0.

// TestChooseWithOneVisibleGPU checks that chooseDevice ignores the local rank if the process sees
// only one GPU: the launcher has then chosen a GPU for each rank.
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

// choice is an input of chooseDevice with the expected GPU.
type choice struct {
	device    int // driver.Config.Device
	localRank int
	want      int // number of the GPU, from 0, or noGPU
}

// noGPU means that chooseDevice must return ErrUnsupported.
const noGPU = -1

// checkChoices calls chooseDevice for each choice and checks the result.
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

// TestLongestTimeoutOfOpenGroups changes the timeout of a group. longestTimeout, which limits the
// wait in Stream.Close, must return the larger of this timeout and the device's.
func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	d := openSingleRank(t)
	base := d.longestTimeout()          // the device's, because there is no group yet
	limit := driver.NewLimit(time.Hour) // the group's, which is changed below
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "g", Ranks: []int{0}, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}

	for _, timeout := range []time.Duration{base / 2, 2 * base} {
		limit.Set(timeout)
		got := d.longestTimeout()
		want := max(base, timeout)
		if got != want {
			t.Errorf("longestTimeout() with a group timeout of %v = %v, want %v", timeout, got, want)
		}
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
