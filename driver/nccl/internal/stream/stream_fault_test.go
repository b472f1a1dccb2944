package stream

import (
	"errors"
	"testing"
)

func TestClosingStreamKeepsFault(t *testing.T) {
	var f faults
	fault := errors.New("fault")
	f.addFault(fault)
	if got := f.takeFault(); !errors.Is(got, fault) {
		t.Errorf("takeFault() = %v; want %v", got, fault)
	}

	if got := f.takeFault(); got != nil {
		t.Errorf("takeFault() = %v after the fault was returned; want nil", got)
	}

	f.keepFirstFault()
	f.addFault(fault)
	for range 2 {
		if got := f.takeFault(); !errors.Is(got, fault) {
			t.Errorf("takeFault() = %v while the stream is being closed; want %v", got, fault)
		}
	}
}
