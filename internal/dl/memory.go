package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Cell holds a value that C reads or writes. It is heap memory, which does not move. A variable on
// the stack could move while C uses it.
//
// For example, a C function stores a version at the address that it gets. The caller makes a cell
// with NewCell(int32(0)), passes its Address to the function, and gets the version with Take. Take
// also releases the memory for later cells, so that calls of C do not allocate.
//
// T must contain no Go pointers, because the garbage collector does not see pointers in a cell.
type Cell[T any] struct{ memory *cellMemory }

// cellMemory is the memory of a Cell. It is aligned to 8 bytes, which is sufficient for all
// numbers.
type cellMemory [cellBytes / 8]uint64

// cellBytes is the maximum size of a value in a Cell.
const cellBytes = 128

// unusedCells holds *cellMemory for later cells.
var unusedCells = sync.Pool{New: func() any { return new(cellMemory) }}

// NewCell returns a cell that holds value. It panics if value has more than 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > cellBytes {
		panic("dl: the value is larger than a cell")
	}

	c := Cell[T]{memory: unusedCells.Get().(*cellMemory)}
	*c.value() = value
	return c
}

// value returns a pointer to the value in the cell.
func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.memory)) }

// Address returns the address of the value.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.memory)) }

// Take returns the value and releases the cell. Call it exactly once, after the last use of the
// memory by C.
func (c Cell[T]) Take() T {
	value := *c.value()
	unusedCells.Put(c.memory)
	return value
}

// AddressOf returns the address of a variable, which it forces into heap memory. The caller must
// keep the variable reachable while C uses it.
func AddressOf[T any](p *T) uintptr {
	// If a pointer may be stored in a global variable, the compiler puts the variable to which it
	// points into heap memory. The compiler does not know that this store is never executed.
	if alwaysFalse {
		atomic.StorePointer(&escapedPointer, unsafe.Pointer(p))
	}

	return uintptr(unsafe.Pointer(p))
}

var (
	alwaysFalse    bool // never set
	escapedPointer unsafe.Pointer
)

// CString returns a zero-terminated copy of s, which the caller must keep reachable while C uses
// it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// Bytes returns C memory as a slice, without a copy. The slice is valid until C frees the memory.
func Bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointerTo(address)), length)
}

// pointerTo converts an address of C memory to a pointer. It reads the bits of the address as a
// pointer, because go vet rejects a direct conversion.
func pointerTo(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// GoString returns a copy of a zero-terminated C string, or "" for address 0.
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

// Load returns the value in C memory at an address, which must be aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointerTo(address)) }
