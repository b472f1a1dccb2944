package workload

import (
	"testing"

	"symmem"
)

func TestNoiseIsBoundedAndFreesAllBlocks(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer runtimes[0].Close()
	n, err := NewNoise(runtimes[0], &Config{Skew: true, Seed: 3}, 1)
	if err != nil {
		t.Fatal(err)
	}

	peak := 0
	for range 500 {
		if err := n.Step(); err != nil {
			t.Fatal(err)
		}

		peak = max(peak, len(n.live))
	}

	if peak == 0 || peak > maxLiveBlocks {
		t.Errorf("up to %d blocks were live, want 1 to %d", peak, maxLiveBlocks)
	}

	if err := n.Close(); err != nil {
		t.Fatal(err)
	}

	for _, p := range runtimes[0].Stats().Pools {
		if p.Used+p.Cached != 0 {
			t.Errorf("a pool still has memory: %+v", p)
		}
	}
}

func TestNewNoiseWithoutSkewReturnsNil(t *testing.T) {
	n, err := NewNoise(nil, &Config{}, 1)
	if n != nil || err != nil || n.Step() != nil || n.Close() != nil {
		t.Errorf("NewNoise = %v, %v; want nil and methods that do nothing", n, err)
	}
}
