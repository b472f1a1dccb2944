package binding

import (
	"strings"
	"testing"
)

func TestPlugStatusPrintsEachErrorOnce(t *testing.T) {
	var printed []string
	l := New(&Counters{}, func(text string) { printed = append(printed, text) })
	if err := l.Open([]byte(hostOptions)); err != nil {
		t.Fatal(err)
	}

	defer func() {
		if err := l.Close(force); err != nil {
			t.Error(err)
		}
	}()
	for range 3 {
		for _, comm := range []uintptr{0x70, 0x80} {
			if got := l.PlugStatus(comm, l.PlugRegister(comm)); got != ncclInvalidArgument {
				t.Errorf("PlugStatus(%#x) = %d, want %d", comm, got, ncclInvalidArgument)
			}
		}
	}

	if len(printed) != 2 || !strings.Contains(printed[0], "communicator 0x70: ") {
		t.Errorf("printed %q, want a line for each communicator", printed)
	}

	if got := l.PlugStatus(0x70, nil); got != 0 || len(printed) != 2 {
		t.Errorf("PlugStatus without an error = %d, printed %q; want 0, no new line", got, printed)
	}
}
