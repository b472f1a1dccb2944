package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const slotBytes = 128

// slot is heap memory for a Cell, aligned for all types.
type slot [slotBytes / 8]uint64

var slots = sync.Pool{New: func() any { return new(slot) }}

// Cell holds a value that C reads or writes. Take releases the cell for reuse. It must be called at
// most once, after C has used the memory for the last time.
//
// T must be a number, or consist of arrays and structures of numbers. The garbage collector does
// not see Go pointers in a cell.
type Cell[T any] struct{ address *slot }

// NewCell returns a cell that holds a value. It panics if T has more than 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > slotBytes {
		panic("dl: the value is larger than a cell")
	}
	c := Cell[T]{slots.Get().(*slot)}
	*c.value() = value
	return c
}

func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.address)) }

// Address returns the address of the value for C.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.address)) }

// Take returns the value and releases the cell. A Take after the call into C keeps the cell
// reachable during the call.
func (c Cell[T]) Take() T {
	value := *c.value()
	slots.Put(c.address)
	return value
}

// never is always false, but the compiler cannot know this. The assignment to sink in AddressOf
// therefore makes the argument escape to the heap.
var (
	never bool
	sink  unsafe.Pointer
)

// AddressOf returns the address of a variable for C. It makes the variable escape to the heap. The
// caller must keep the variable reachable for as long as C uses it.
func AddressOf[T any](p *T) uintptr {
	if never {
		atomic.StorePointer(&sink, unsafe.Pointer(p))
	}
	return uintptr(unsafe.Pointer(p))
}

// CString returns a zero-terminated copy of s, which the caller must keep reachable for as long as
// C uses it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Bytes returns readable memory of C as a slice, which is valid until C frees the memory.
func Bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointer(address)), length)
}

// GoString returns a copy of the zero-terminated C string at an address, or "" for address 0.
func GoString(address uintptr) string {
	if address == 0 {
		return ""
	}
	length := 0
	for *(*byte)(unsafe.Add(pointer(address), length)) != 0 {
		length++
	}
	return string(Bytes(address, length))
}

// Load returns a copy of the value at a C address, which must be readable and aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointer(address)) }
