package nccl

import (
	"strings"
	"testing"

	"symmem/internal/cuda"
)

func TestCurrentSetsTheContextOfTheRank(t *testing.T) {
	for rank := range min(devices(t), 2) {
		err := Current(rank, func(gpu *cuda.Driver) error {
			context, err := gpu.Current()
			if context == 0 {
				t.Errorf("rank %d: there is no current context", rank)
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

func TestCurrentWithoutAGPU(t *testing.T) {
	if devices(t) == 1 {
		return // every rank uses the only GPU
	}
	err := Current(1<<10, func(*cuda.Driver) error {
		t.Error("the calls were made")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "local rank 1024") {
		t.Errorf("got %v, want an error about local rank 1024", err)
	}
}
