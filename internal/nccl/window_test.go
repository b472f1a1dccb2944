package nccl

import (
	"testing"
)

func TestHandlesOfRegistrations(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	for _, handle := range []uint64{other, 0} { // window 0 is legal
		recorder.Output(3, word(handle))
		window, err := library.WindowRegister(comm, address, many)
		got := recorder.Last()
		if uint64(window) != handle || err != nil || got.Name != "ncclCommWindowRegister" ||
			got.Args[0] != comm || got.Args[1] != address || got.Args[2] != many || got.Args[4] != 1 {
			t.Errorf("window %#x, %v by %s%#x", window, err, got.Name, got.Args)
		}
	}
	recorder.Reset()
	if err := library.WindowDeregister(comm, 0); err != nil || recorder.Last().Name != "" {
		t.Errorf("window 0 was deregistered by %q, %v", recorder.Last().Name, err)
	}
}
