package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// If the process sees only one GPU, the GPU does not depend on the local rank.
func TestChooseWithOneVisibleGPU(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	const recentNCCL = "SOFTGPU_NCCL=23203" // 2.32.3
	if !inChildProcess(t, "SOFTGPU_DEVICES=1", recentNCCL) {
		return
	}

	checkChoices(t, []choice{
		{device: anyDevice, localRank: 0, want: 0},
		{device: anyDevice, localRank: 3, want: 0},
		{device: 1, localRank: 0, want: 0},
		{device: 1, localRank: 3, want: 0},
		{device: 2, localRank: 0, want: noGPU},
		{device: 2, localRank: 1, want: noGPU},
	})
}

func TestChooseSpreadsRanksOverSharedGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingVariable+"=1") {
		return
	}

	checkChoices(t, []choice{
		{device: anyDevice, localRank: 1, want: 1},
		{device: anyDevice, localRank: 2, want: 0},
		{device: anyDevice, localRank: 5, want: 1},
		{device: 1, localRank: 5, want: 0},
		{device: 3, localRank: 1, want: noGPU},
	})
}

func TestChooseRefusesMoreRanksThanGPUs(t *testing.T) {
	requireSoftGPU(t, "has a configurable number of devices")
	sharingDisabled := sharingVariable + "="
	if !inChildProcess(t, "SOFTGPU_DEVICES=2", sharingDisabled) {
		return
	}

	checkChoices(t, []choice{
		{device: anyDevice, localRank: 1, want: 1},
		{device: anyDevice, localRank: 2, want: noGPU},
	})
}

// choice is an input of chooseDevice with the expected GPU.
type choice struct {
	device    int // requested GPU, from 1, or anyDevice
	localRank int // number of the rank on its machine
	want      int // GPU, from 0, or noGPU
}

const (
	anyDevice = 0  // select a GPU by the local rank
	noGPU     = -1 // chooseDevice returns ErrUnsupported
)

func checkChoices(t *testing.T, choices []choice) {
	t.Helper()
	gpus, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range choices {
		got, err := chooseDevice(gpus, &driver.Config{Device: c.device, LocalRank: c.localRank})
		input := fmt.Sprintf("device %d, local rank %d", c.device, c.localRank)
		switch {
		case c.want == noGPU:
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("chooseDevice(%s) = %v, want ErrUnsupported", input, err)
			}
		case err != nil:
			t.Errorf("chooseDevice(%s) = %v, want GPU %d", input, err, c.want)
		case got.Ordinal() != c.want:
			t.Errorf("chooseDevice(%s) = GPU %d, want GPU %d", input, got.Ordinal(), c.want)
		}
	}
}

// openSingleRank opens a device for a program of one rank. The test closes it at the end.
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

func TestLongestTimeoutOfOpenGroups(t *testing.T) {
	d := openSingleRank(t)
	deviceTimeout := d.longestTimeout() // without groups
	groupLimit := driver.NewLimit(time.Hour)
	c, err := d.Connect(t.Context(), driver.GroupConfig{
		ID: "g", Ranks: []int{0}, Timeout: groupLimit,
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, groupTimeout := range []time.Duration{deviceTimeout / 2, 2 * deviceTimeout} {
		groupLimit.Set(groupTimeout)
		got := d.longestTimeout()
		want := max(deviceTimeout, groupTimeout)
		if got != want {
			t.Errorf("longestTimeout() with a group timeout of %v = %v, want %v", groupTimeout, got, want)
		}
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
