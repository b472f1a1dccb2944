package memory

import (
	"errors"
	"testing"
)

// TestFailedReleaseIsRepeated lets NCCL refuse to forget memory of a destroyed graph. The next
// attempt must ask again, because NCCL may still have mapped it.
func TestFailedReleaseIsRepeated(t *testing.T) {
	failure := errors.New("refused")
	attempts := 0
	m := &Memory{NCCLMapsCaptured: true, ReleaseCaptured: func() error {
		if attempts++; attempts == 1 {
			return failure
		}
		return nil
	}}
	u := &UseCount{}
	used := []*UseCount{u}
	m.UseCounts.AddPlainCalls(used, 1)
	m.UseCounts.AddPlainCalls(used, -1)
	for i, want := range []error{failure, nil, nil} {
		if err := m.releaseCaptured(u); !errors.Is(err, want) {
			t.Errorf("attempt %d: got %v, want %v", i+1, err, want)
		}
	}
	if attempts != 2 {
		t.Errorf("NCCL was asked %d times, want 2", attempts)
	}
}
