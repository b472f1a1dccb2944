package memory

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
)

// TestFailedReleaseIsRepeated lets NCCL refuse to forget memory of a destroyed graph. The next
// attempt must ask again, because NCCL may still have mapped it.
func TestFailedReleaseIsRepeated(t *testing.T) {
	failure := errors.New("refused")
	attempts := 0
	m := &Memory{NCCLMapsCaptured: true, ReleaseCaptured: func(bool) error {
		if attempts++; attempts == 1 {
			return failure
		}

		return nil
	}}
	u := &UseCount{}
	used := []*UseCount{u}
	m.UseCounts.AddPlainCalls(used)
	m.UseCounts.EndPlainCalls(used)
	for i, want := range []error{failure, nil, nil} {
		if err := m.releaseOnPeers(u, false); !errors.Is(err, want) {
			t.Errorf("attempt %d: got %v, want %v", i+1, err, want)
		}
	}

	if attempts != 2 {
		t.Errorf("NCCL was asked %d times, want 2", attempts)
	}
}

// TestErrorOfDeferredUnmapIsReported unmaps a segment that a graph uses, and lets the release fail
// when the graph has been destroyed.
func TestErrorOfDeferredUnmapIsReported(t *testing.T) {
	failure := errors.New("refused")
	m := New(&gpu.GPU{}, nil)
	m.NCCLMapsCaptured, m.ReleaseCaptured = true, func(isUnmapping bool) error {
		if !isUnmapping {
			t.Error("isUnmapping is not set before an unmap")
		}

		return failure
	}
	s := &Segment{arena: &Arena{memory: m}, isSuspended: true} // suspended, so CUDA is not called
	s.UseCount.userCount, s.UseCount.mayBeOnPeers = 1, true
	if err := s.unmap(); err != nil {
		t.Fatal(err)
	}

	m.UseCounts.mu.Lock()
	unused := removeUsers([]*UseCount{&s.UseCount})
	m.UseCounts.mu.Unlock()
	m.UseCounts.freeUnused(unused[0])
	freed := false
	if err := m.gpu.FreeWhenIdle(func() error { freed = true; return nil }); err != nil || !freed {
		t.Errorf("FreeWhenIdle = %v, freed = %t; want an immediate free, before Reclaim", err, freed)
	}

	m.gpu.ReclaimBeforeMap()
	if _, err := m.gpu.Reclaim(); !errors.Is(err, failure) {
		t.Errorf("Reclaim = %v after the deferred unmap, want %v", err, failure)
	}
}
