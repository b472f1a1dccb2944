package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Cell is heap memory for a value that C reads or writes. A variable on a goroutine's stack could
// move during the call. For example, a C function stores an int through a pointer argument:
//
//	cell := NewCell(int32(0))
//	getVersion.Call(cell.Address())
//	version := cell.Take()
//
// T must contain no Go pointers, because the garbage collector would not see them.
type Cell[T any] struct{ memory *cellMemory }

// cellBytes is the maximum size of a value in a Cell.
const cellBytes = 128

// cellMemory consists of uint64, so that its alignment suffices for all numbers.
type cellMemory [cellBytes / 8]uint64

var unusedCells = sync.Pool{New: func() any { return new(cellMemory) }}

// NewCell returns a cell that holds value. It panics if value is larger than 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > cellBytes {
		panic("dl: the value is larger than a cell")
	}

	c := Cell[T]{memory: unusedCells.Get().(*cellMemory)}
	*c.value() = value
	return c
}

func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.memory)) }

// Address returns the address of the value, which is valid until Take.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.memory)) }

// Take returns the value and releases the cell for reuse. Call it exactly once, when C has finished
// with the cell.
func (c Cell[T]) Take() T {
	value := *c.value()
	unusedCells.Put(c.memory)
	return value
}

// AddressOf returns the address of a variable, and makes the compiler allocate the variable on the
// heap. The caller must keep the variable reachable while C uses it (runtime.KeepAlive).
func AddressOf[T any](p *T) uintptr {
	if alwaysFalse { // unknown to the compiler, so p escapes
		atomic.StorePointer(&escapedPointer, unsafe.Pointer(p))
	}

	return uintptr(unsafe.Pointer(p))
}

var (
	alwaysFalse    bool // never set
	escapedPointer unsafe.Pointer
)

// CString returns a zero-terminated copy of s, for AddressOf.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// Bytes returns C memory as a slice, without a copy.
func Bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointerTo(address)), length)
}

// pointerTo converts an address of C memory indirectly, because go vet rejects a direct conversion.
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

// Read copies a value from C memory. address must be aligned for T.
func Read[T any](address uintptr) T { return *(*T)(pointerTo(address)) }
