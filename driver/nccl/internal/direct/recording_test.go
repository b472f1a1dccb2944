package direct

import "testing"

// TestConcurrentCapturesAreNumbered begins more captures than OpenRecordings, so that the least
// recently used one is dropped. If it is used again, it must get a new number.
func TestConcurrentCapturesAreNumbered(t *testing.T) {
	var r Recordings
	for id := range uint64(OpenRecordings) {
		if position := r.Get(100 + id).Next(); position.Capture != id+1 || position.Call != 1 {
			t.Errorf("first call in capture %[1]d: got position %[2]v, want call 1 of capture %[1]d",
				id+1, position)
		}
	}
	if position := r.Get(100).Next(); position.Capture != 1 || position.Call != 2 {
		t.Errorf("second call in capture 1: got position %v, want call 2 of capture 1", position)
	}
	if position := r.Get(99).Next(); position.Capture != OpenRecordings+1 || position.Call != 1 {
		t.Errorf("first call in a new capture: got position %v, want call 1 of capture %d", position,
			OpenRecordings+1)
	}
	if position := r.Get(100).Next(); position.Capture != 1 || position.Call != 3 {
		t.Errorf("third call in capture 1: got position %v, want call 3 of capture 1", position)
	}
	if r.Has(101) || !r.Has(100) {
		t.Error("want the least recently used capture dropped, and the most recently used one kept")
	}
	if position := r.Get(101).Next(); position.Capture != OpenRecordings+2 || position.Call != 1 {
		t.Errorf("first call in a dropped capture: got position %v, want call 1 of capture %d", position,
			OpenRecordings+2)
	}
	if len(r.foreign) != OpenRecordings {
		t.Errorf("Recordings keeps %d captures, want %d", len(r.foreign), OpenRecordings)
	}
}
