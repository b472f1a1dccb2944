package binding

import (
	"errors"
	"testing"

	"symmem"
)

// TestCloseSignalWordsCanBeRetried closes words while unfinished work delays the close beyond its
// deadline.
func TestCloseSignalWordsCanBeRetried(t *testing.T) {
	l, _ := openLibrary(t, `{"backend": "host", "size": 1, "check": "off", "timeout_ms": 50}`)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	addresses, err := l.OpenSignalWords(r.worldHandle, 4)
	if err != nil {
		t.Fatal(err)
	}

	unblock := blockStream(t, r, 1)
	if err := l.CloseSignalWords(addresses[0]); !errors.As(err, new(*symmem.TimeoutError)) {
		t.Errorf("CloseSignalWords during work = %v, want a TimeoutError", err)
	}

	unblock()
	if err := l.Synchronize(1); err != nil {
		t.Fatal(err)
	}

	if err := l.CloseSignalWords(addresses[0]); err != nil {
		t.Errorf("CloseSignalWords after work = %v, want nil", err)
	}

	if err := l.CloseSignalWords(addresses[0]); !errors.Is(err, symmem.ErrForeign) {
		t.Errorf("second CloseSignalWords = %v, want ErrForeign", err)
	}
}
