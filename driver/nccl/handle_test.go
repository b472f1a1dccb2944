package nccl

import (
	"strings"
	"testing"

	"symmem/internal/cuda"
)

func TestForeignCallsFindTheContextOfTheirRank(t *testing.T) {
	for rank := range min(devices(t), 2) {
		err := Current(rank, func(gpu *cuda.Driver) error {
			context, err := gpu.Current()
			if context == 0 {
				t.Errorf("rank %d: no context is current", rank)
			}
			if free, total, err := gpu.MemGetInfo(); free <= 0 || total < free || err != nil {
				t.Errorf("rank %d: %d of %d bytes are free, %v", rank, free, total, err)
			}
			return err
		})
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestForeignCallsOfARankWithoutAGPUAreNotMade(t *testing.T) {
	if devices(t) == 1 {
		return // then every rank takes the one that there is
	}
	err := Current(1<<10, func(*cuda.Driver) error {
		t.Error("the calls were made")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "local rank 1024") {
		t.Errorf("got %v", err)
	}
}
