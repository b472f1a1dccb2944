package nccl

import (
	"strings"
	"testing"

	"symmem/internal/cuda"
)

func TestCurrentSetsTheContextOfTheRank(t *testing.T) {
	for rank := range min(maxRanks(t), 2) {
		err := Current(rank, func(gpu *cuda.Driver) error {
			context, err := gpu.Current()
			if context == 0 {
				t.Errorf("rank %d: no context is current", rank)
			}

			if free, total, err := gpu.MemGetInfo(); free <= 0 || total < free || err != nil {
				t.Errorf("rank %d: MemGetInfo() = %d, %d, %v; want some free memory", rank, free, total, err)
			}

			return err
		})
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestCurrentWithoutAGPU(t *testing.T) {
	if maxRanks(t) == 1 {
		return // every rank uses the only GPU
	}

	err := Current(1<<10, func(*cuda.Driver) error {
		t.Error("Current called the function")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "local rank 1024") {
		t.Errorf("Current = %v, want an error about local rank 1024", err)
	}
}
