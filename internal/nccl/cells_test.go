package nccl

import (
	"testing"
)

func TestCellsAreNeverUsedTwice(t *testing.T) {
	var c cells
	seen := map[*uintptr]bool{}
	for i := range 3*cellsInBlock + 1 {
		cell := c.take()
		if seen[cell] || *cell != 0 {
			t.Fatalf("cell %d was used before", i)
		}
		seen[cell], *cell = true, 1
	}
}
