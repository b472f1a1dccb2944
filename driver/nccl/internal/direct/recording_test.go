package direct

import "testing"

// TestConcurrentCapturesAreNumbered opens more captures than can be kept. The least recently used
// one is dropped, and gets a new number when it is used again.
func TestConcurrentCapturesAreNumbered(t *testing.T) {
	var r Recordings
	for id := range uint64(OpenRecordings) {
		if at := r.Of(100 + id).Next(); at.Capture != id+1 || at.Call != 1 {
			t.Errorf("the first call of capture %d is %v", id+1, at)
		}
	}
	if at := r.Of(100).Next(); at.Capture != 1 || at.Call != 2 {
		t.Errorf("the second call of capture 1 is %v", at)
	}
	if at := r.Of(99).Next(); at.Capture != OpenRecordings+1 || at.Call != 1 {
		t.Errorf("the first call of a further capture is %v", at)
	}
	if at := r.Of(100).Next(); at.Capture != 1 || at.Call != 3 {
		t.Errorf("the third call of capture 1, which was used recently, is %v", at)
	}
	if r.Has(101) || !r.Has(100) {
		t.Error("the least recently used capture is not the one that was dropped")
	}
	if at := r.Of(101).Next(); at.Capture != OpenRecordings+2 || at.Call != 1 {
		t.Errorf("the first call of a dropped capture is %v", at)
	}
	if len(r.open) != OpenRecordings {
		t.Errorf("%d captures are kept, want %d", len(r.open), OpenRecordings)
	}
}
