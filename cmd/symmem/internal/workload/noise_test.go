package workload

import (
	"testing"

	"symmem"
)

func TestNoiseStaysWithinItsBlocksAndGivesAllBack(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer runtimes[0].Close()
	n, err := NewNoise(runtimes[0], &Config{Skew: true, Seed: 3}, 1)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for range 500 {
		if err := n.Step(); err != nil {
			t.Fatal(err)
		}
		most = max(most, len(n.live))
	}
	if most == 0 || most > noiseBlocks {
		t.Errorf("%d blocks live at most", most)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range runtimes[0].Stats().Pools {
		if p.Used+p.Cached != 0 {
			t.Errorf("left in a pool: %+v", p)
		}
	}
}

func TestWithoutSkewThereIsNoNoise(t *testing.T) {
	n, err := NewNoise(nil, &Config{}, 1)
	if n != nil || err != nil || n.Step() != nil || n.Close() != nil {
		t.Errorf("%v, %v", n, err)
	}
}
