package binding

import (
	"strings"
	"testing"
)

func TestPlugFailedPrintsEachCauseOnce(t *testing.T) {
	var printed []string
	l := New(&Words{}, func(text string) { printed = append(printed, text) })
	if err := l.Open([]byte(host)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(true); err != nil {
			t.Error(err)
		}
	}()
	for range 3 {
		for _, comm := range []uintptr{0x70, 0x80} {
			if got := l.PlugFailed(comm, l.PlugRegister(comm)); got != ncclInvalidArgument {
				t.Errorf("communicator %#x: result %d, want %d", comm, got, ncclInvalidArgument)
			}
		}
	}
	if len(printed) != 2 || !strings.Contains(printed[0], "communicator 0x70: ") {
		t.Errorf("printed %q, want a line for each communicator", printed)
	}
	if l.PlugFailed(0x70, nil) != 0 || len(printed) != 2 {
		t.Errorf("success printed %q", printed)
	}
}
