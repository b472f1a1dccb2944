package binding

import (
	"errors"
	"testing"

	"symmem"
)

// TestClosePadDuringCheck closes pads while other goroutines check and explain them. These must not
// read memory that has been unmapped.
func TestClosePadDuringCheck(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	const rounds = 50
	for range rounds {
		address, err := l.OpenPad(r.worldHandle, []string{"site"})
		if err != nil {
			t.Fatal(err)
		}

		begun, ended := make(chan struct{}, 2), make(chan error, 2)
		for _, check := range []func() error{
			func() error { return l.CheckPad(address) },
			func() error { _, err := l.ExplainPad(address); return err },
		} {
			go func() {
				err := check()
				for begun <- struct{}{}; err == nil; {
					err = check()
				}

				ended <- err
			}()
		}

		<-begun
		<-begun
		if err := l.ClosePad(address); err != nil {
			t.Fatal(err)
		}

		for range 2 {
			if err := <-ended; !errors.Is(err, symmem.ErrForeign) && !errors.Is(err, symmem.ErrClosed) {
				t.Fatalf("a check of a closed pad = %v, want ErrForeign or ErrClosed", err)
			}
		}
	}
}
