package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const cellBytes = 128

// cellMemory is aligned for all types.
type cellMemory [cellBytes / 8]uint64

var unusedCells = sync.Pool{New: func() any { return new(cellMemory) }}

// Cell is heap memory for a value that C reads or writes.
//
// T must consist of numbers, because the garbage collector does not see Go pointers in a cell.
type Cell[T any] struct{ address *cellMemory }

// NewCell returns a cell that holds a value of at most 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > cellBytes {
		panic("dl: the value is larger than a cell")
	}
	c := Cell[T]{unusedCells.Get().(*cellMemory)}
	*c.value() = value
	return c
}

func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.address)) }

// Address returns the address of the value.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.address)) }

// Take returns the value and releases the cell. It must be called once, after C has used the
// memory.
func (c Cell[T]) Take() T {
	value := *c.value()
	unusedCells.Put(c.address)
	return value
}

// The compiler cannot know that alwaysFalse is never set, so AddressOf's argument is in heap
// memory.
var (
	alwaysFalse    bool
	escapedPointer unsafe.Pointer
)

// AddressOf returns the address of a variable in heap memory, which the caller must keep reachable
// while C uses it.
func AddressOf[T any](p *T) uintptr {
	if alwaysFalse {
		atomic.StorePointer(&escapedPointer, unsafe.Pointer(p))
	}
	return uintptr(unsafe.Pointer(p))
}

// CString returns a zero-terminated copy of s, which the caller must keep reachable while C uses
// it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

func pointerTo(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Bytes returns C memory as a slice, which is valid until C frees the memory.
func Bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointerTo(address)), length)
}

// GoString returns a copy of a C string, or "" for address 0.
func GoString(address uintptr) string {
	if address == 0 {
		return ""
	}
	length := 0
	for *(*byte)(unsafe.Add(pointerTo(address), length)) != 0 {
		length++
	}
	return string(Bytes(address, length))
}

// Load returns the value at a C address, which must be readable and aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointerTo(address)) }
