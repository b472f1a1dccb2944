package nccl

import (
	"testing"
)

func TestCellsAreNeverReused(t *testing.T) {
	var c cells
	seen := map[*uintptr]bool{}
	for i := range 3*cellsPerBlock + 1 {
		cell := c.take()
		if seen[cell] || *cell != 0 {
			t.Fatalf("take() #%d returned a cell that is in use", i)
		}

		seen[cell], *cell = true, 1
	}
}
