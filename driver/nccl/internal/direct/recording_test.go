package direct

import "testing"

// TestConcurrentCapturesAreNumbered begins more captures than OpenRecordings. The least recently
// used capture is dropped. If it is used again, it gets a new number.
func TestConcurrentCapturesAreNumbered(t *testing.T) {
	var r Recordings
	for id := range uint64(OpenRecordings) {
		if position := r.Of(100 + id).Next(); position.Capture != id+1 || position.Call != 1 {
			t.Errorf("position of the first call in capture %d: got %v", id+1, position)
		}
	}
	if position := r.Of(100).Next(); position.Capture != 1 || position.Call != 2 {
		t.Errorf("position of the second call in capture 1: got %v", position)
	}
	if position := r.Of(99).Next(); position.Capture != OpenRecordings+1 || position.Call != 1 {
		t.Errorf("position of the first call in another capture: got %v", position)
	}
	if position := r.Of(100).Next(); position.Capture != 1 || position.Call != 3 {
		t.Errorf("position of the third call in capture 1, which was used recently: got %v", position)
	}
	if r.Has(101) || !r.Has(100) {
		t.Error("the dropped capture is not the least recently used one")
	}
	if position := r.Of(101).Next(); position.Capture != OpenRecordings+2 || position.Call != 1 {
		t.Errorf("position of the first call in a dropped capture: got %v", position)
	}
	if len(r.open) != OpenRecordings {
		t.Errorf("%d captures are kept, want %d", len(r.open), OpenRecordings)
	}
}
