package direct

import "testing"

// TestConcurrentCapturesAreNumbered begins more captures than MaxOpenRecordings, so that the least
// recently used one is dropped. If it is used again, it must get a new number.
func TestConcurrentCapturesAreNumbered(t *testing.T) {
	var r Recordings
	for id := range uint64(MaxOpenRecordings) {
		position := r.GetOrBegin(100 + id).NextPosition()
		if position.Capture != id+1 || position.Call != 1 {
			t.Errorf("first call in capture %[1]d: got position %[2]v, want call 1 of capture %[1]d",
				id+1, position)
		}
	}

	if position := r.GetOrBegin(100).NextPosition(); position.Capture != 1 || position.Call != 2 {
		t.Errorf("second call in capture 1: got position %v, want call 2 of capture 1", position)
	}

	position := r.GetOrBegin(99).NextPosition()
	if position.Capture != MaxOpenRecordings+1 || position.Call != 1 {
		t.Errorf("first call in a new capture: got position %v, want call 1 of capture %d", position,
			MaxOpenRecordings+1)
	}

	if position := r.GetOrBegin(100).NextPosition(); position.Capture != 1 || position.Call != 3 {
		t.Errorf("third call in capture 1: got position %v, want call 3 of capture 1", position)
	}

	if r.HasCapture(101) || !r.HasCapture(100) {
		t.Error("want the least recently used capture dropped, and the most recently used one kept")
	}

	position = r.GetOrBegin(101).NextPosition()
	if position.Capture != MaxOpenRecordings+2 || position.Call != 1 {
		t.Errorf("first call in a dropped capture: got position %v, want call 1 of capture %d", position,
			MaxOpenRecordings+2)
	}

	if len(r.foreignRecordings) != MaxOpenRecordings {
		t.Errorf("Recordings keeps %d captures, want %d", len(r.foreignRecordings), MaxOpenRecordings)
	}
}
