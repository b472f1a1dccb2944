package binding

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem"
)

func takeWarning(l *Library) (text string) {
	l.TakeWarning(func(oldest string) bool { text = oldest; return true })
	return text
}

func TestWarningIsTakenOnce(t *testing.T) {
	l := New(&Counters{}, nil)
	if text := takeWarning(l); text != "" {
		t.Errorf("TakeWarning passed %q before any warning was stored, want an empty text", text)
	}

	l.addLate(symmem.LateWarning{
		Group: "g", InCall: "AllReduce 1 of group g", Waited: 31 * time.Second, Ranks: []int{5},
		Activity: map[int]string{5: "in no call of this group"}, Members: []int{0, 5},
	})
	l.TakeWarning(func(string) bool { return false }) // as if the buffer were too short
	want := lateDetail{
		Kind: "late", Group: "g", InCall: "AllReduce 1 of group g", WaitedMS: 31000, Ranks: []int{5},
		Activity: map[int]string{5: "in no call of this group"},
		Message: "AllReduce 1 of group g: waiting for 31s for world rank 5 (rank 1 of the group); " +
			"world rank 5: in no call of this group; the wait continues",
	}
	var got lateDetail
	if err := json.Unmarshal([]byte(takeWarning(l)), &got); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if text := takeWarning(l); text != "" {
		t.Errorf("TakeWarning passed %q again, want an empty text", text)
	}

	if n := l.counters.Warnings.Load(); n != 1 {
		t.Errorf("Warnings = %d, want 1", n)
	}
}

func TestOldestWarningsAreDropped(t *testing.T) {
	l := New(&Counters{}, nil)
	for i := range maxWarnings + 3 {
		l.addLate(symmem.LateWarning{Group: fmt.Sprint(i)})
	}

	for i := 3; i < maxWarnings+3; i++ {
		var got lateDetail
		err := json.Unmarshal([]byte(takeWarning(l)), &got)
		if err != nil || got.Group != fmt.Sprint(i) {
			t.Fatalf("got %+v (%v), want warning %d", got, err, i)
		}
	}

	if text := takeWarning(l); text != "" {
		t.Errorf("TakeWarning passed %q after the last warning, want an empty text", text)
	}
}
