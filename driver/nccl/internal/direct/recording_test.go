package direct

import "testing"

// TestManyCapturesAtOnceHaveNumbersOfTheirOwn: those that nothing was added to for long are
// forgotten, and begin anew.
func TestManyCapturesAtOnceHaveNumbersOfTheirOwn(t *testing.T) {
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
		t.Errorf("the first call of one capture more is %v", at)
	}
	if at := r.Of(100).Next(); at.Capture != 1 || at.Call != 3 {
		t.Errorf("the third call of capture 1, which is no old one, is %v", at)
	}
	if r.Has(101) || !r.Has(100) {
		t.Error("it is not the capture without a call for longest that is forgotten")
	}
	if at := r.Of(101).Next(); at.Capture != OpenRecordings+2 || at.Call != 1 {
		t.Errorf("a call of a capture that is forgotten is %v", at)
	}
	if len(r.open) != OpenRecordings {
		t.Errorf("%d captures are known", len(r.open))
	}
}
