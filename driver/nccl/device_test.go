package nccl

import (
	"errors"
	"testing"

	"symmem/driver"
	"symmem/internal/cuda"
)

// TestTheDeviceThatAProgramNamesIsTaken is about a process that sees one GPU.
func TestTheDeviceThatAProgramNamesIsTaken(t *testing.T) {
	if !soft(t) {
		t.Skipf("only the software GPU has as many devices as it is told: %v", driver.ErrUnsupported)
	}
	if !within(t, "SOFTGPU_DEVICES=1", "SOFTGPU_NCCL=23203") {
		return
	}
	choosing(t, []choice{
		{0, 0, 0},
		{0, 3, 0}, // its own GPU is the one that it sees
		{1, 0, 0},
		{1, 3, 0},
		{2, 0, -1},
		{2, 1, -1},
	})
}

func TestRanksThatShareGPUsAreSpreadOverThem(t *testing.T) {
	if !soft(t) {
		t.Skipf("only the software GPU has as many devices as it is told: %v", driver.ErrUnsupported)
	}
	if !within(t, "SOFTGPU_DEVICES=2", sharingVariable+"=1") {
		return
	}
	choosing(t, []choice{
		{0, 1, 1},
		{0, 2, 0},
		{0, 5, 1},
		{1, 5, 0},
		{3, 1, -1},
	})
}

func TestARankWithoutAGPUOfItsOwnIsRefused(t *testing.T) {
	if !soft(t) {
		t.Skipf("only the software GPU has as many devices as it is told: %v", driver.ErrUnsupported)
	}
	if !within(t, "SOFTGPU_DEVICES=2", sharingVariable+"=") {
		return
	}
	choosing(t, []choice{{0, 1, 1}, {0, 2, -1}})
}

// choice is the ordinal of the GPU that a rank is to take; -1 is a refusal.
type choice struct{ device, local, want int }

// choosing demands what ranks take.
func choosing(t *testing.T, all []choice) {
	t.Helper()
	gpus, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		d := &Device{cfg: driver.Config{Device: c.device, LocalRank: c.local}, cuda: gpus}
		err := d.choose()
		switch {
		case c.want < 0 && !errors.Is(err, driver.ErrUnsupported):
			t.Errorf("%+v: error %v", c, err)
		case c.want >= 0 && (err != nil || d.gpu.Ordinal() != c.want):
			t.Errorf("%+v: GPU %d, %v", c, d.gpu.Ordinal(), err)
		}
	}
}
