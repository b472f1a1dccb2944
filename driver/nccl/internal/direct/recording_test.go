package direct

import "testing"

// TestConcurrentCapturesAreNumbered begins more captures than OpenRecordings. The least recently
// used capture is dropped and gets a new number when it is used again.
func TestConcurrentCapturesAreNumbered(t *testing.T) {
	var r Recordings
	for id := range uint64(OpenRecordings) {
		if at := r.Of(100 + id).Next(); at.Capture != id+1 || at.Call != 1 {
			t.Errorf("position of the first call in capture %d: got %v", id+1, at)
		}
	}
	if at := r.Of(100).Next(); at.Capture != 1 || at.Call != 2 {
		t.Errorf("position of the second call in capture 1: got %v", at)
	}
	if at := r.Of(99).Next(); at.Capture != OpenRecordings+1 || at.Call != 1 {
		t.Errorf("position of the first call in another capture: got %v", at)
	}
	if at := r.Of(100).Next(); at.Capture != 1 || at.Call != 3 {
		t.Errorf("position of the third call in capture 1, which was used recently: got %v", at)
	}
	if r.Has(101) || !r.Has(100) {
		t.Error("the dropped capture is not the least recently used one")
	}
	if at := r.Of(101).Next(); at.Capture != OpenRecordings+2 || at.Call != 1 {
		t.Errorf("position of the first call in a dropped capture: got %v", at)
	}
	if len(r.open) != OpenRecordings {
		t.Errorf("%d captures are kept, want %d", len(r.open), OpenRecordings)
	}
}
