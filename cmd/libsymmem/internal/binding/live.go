package binding

import (
	"cmp"
	"fmt"
	"slices"

	"symmem"
)

// live is the buffers that callers hold, by address: a sorted list, since there are some thousand
// at most, and callers ask for addresses inside of them.
type live struct{ buffers []symmem.Buffer }

func compareAddress(b symmem.Buffer, address uintptr) int {
	return cmp.Compare(b.Address(), address)
}

// add adds a buffer.
func (l *live) add(b symmem.Buffer) {
	i, _ := slices.BinarySearchFunc(l.buffers, b.Address(), compareAddress)
	l.buffers = slices.Insert(l.buffers, i, b)
}

// take removes the buffer that begins at an address, if there is one.
func (l *live) take(address uintptr) (symmem.Buffer, bool) {
	i, ok := slices.BinarySearchFunc(l.buffers, address, compareAddress)
	if !ok {
		return symmem.Buffer{}, false
	}
	b := l.buffers[i]
	l.buffers = slices.Delete(l.buffers, i, i+1)
	return b, true
}

// holding finds the buffer that an address lies in.
func (l *live) holding(address uintptr) (symmem.Buffer, bool) {
	i, ok := slices.BinarySearchFunc(l.buffers, address, compareAddress)
	if !ok {
		i--
	}
	if i < 0 || address-l.buffers[i].Address() >= uintptr(l.buffers[i].Size()) {
		return symmem.Buffer{}, false
	}
	return l.buffers[i], true
}

// covers refuses a range that does not lie in one buffer.
func (l *live) covers(address uintptr, bytes int64) error {
	b, ok := l.holding(address)
	if !ok {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}
	if left := b.Size() - int64(address-b.Address()); bytes > left {
		return fmt.Errorf("%d bytes at %#x, where a buffer of %d ends after %d: %w",
			bytes, address, b.Size(), left, symmem.ErrOutOfRange)
	}
	return nil
}
