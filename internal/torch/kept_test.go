package torch

import (
	"testing"
	"unsafe"

	"symmem"
)

// TestMemoryOutlivesAForcedClose closes a pool, and then the library, over buffers that are in use.
func TestMemoryOutlivesAForcedClose(t *testing.T) {
	l, _ := alone(t, host)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	number, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	words := map[int]*uint64{}
	for _, pool := range []int{0, number, Local} {
		at, err := l.Alloc(pool, 4096, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		words[pool] = *(**uint64)(unsafe.Pointer(&at))
		*words[pool] = uint64(pool + 10)
	}
	if err := l.Close(false); CodeOf(err) != Live {
		t.Errorf("closing over live buffers: %v", err)
	}
	for _, end := range []func() error{
		func() error { return l.ClosePool(number, true) },
		func() error { return l.Close(true) },
	} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		for pool, word := range words {
			if *word != uint64(pool+10) {
				t.Errorf("a buffer of pool %d holds %d", pool, *word)
			}
		}
	}
	if err := l.Open([]byte(host)); err != nil {
		t.Fatal(err)
	}
	for pool, word := range words {
		address := uintptr(unsafe.Pointer(word))
		if err := l.Free(address, true); err != nil {
			t.Errorf("freeing a buffer of pool %d: %v", pool, err)
		}
		if err := l.Free(address, false); CodeOf(err) != CodeOf(symmem.ErrForeign) {
			t.Errorf("freeing it twice: %v", err)
		}
	}
}
