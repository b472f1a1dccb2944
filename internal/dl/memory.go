package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const slotBytes = 128

// slot is reusable heap memory for the arguments of calls. Its elements are words, so it is aligned
// for all types.
type slot [slotBytes / 8]uint64

var slots = sync.Pool{New: func() any { return new(slot) }}

// Cell holds a value of type T that C reads or writes. Take releases the cell for reuse; it must
// be called at most once, after C has used the memory for the last time. A cell that is never
// released is garbage-collected.
//
// T must be a number, or consist of arrays and structures of numbers. It must not contain Go
// pointers, because the garbage collector does not see them in a cell.
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

// Take returns the value and releases the cell. If it is called after the call into C, it also
// keeps the cell reachable during that call.
func (c Cell[T]) Take() T {
	value := *c.value()
	slots.Put(c.address)
	return value
}

// never is always false, but because the compiler cannot know this, the assignment to sink in
// AddressOf makes the argument escape to the heap.
var (
	never bool
	sink  unsafe.Pointer
)

// AddressOf returns the address of a variable for C. It makes the variable escape to the heap,
// so that the address stays valid. The caller must keep the variable reachable for as long as C
// uses it, with runtime.KeepAlive after the call or with a permanent reference.
func AddressOf[T any](p *T) uintptr {
	if never {
		atomic.StorePointer(&sink, unsafe.Pointer(p))
	}
	return uintptr(unsafe.Pointer(p))
}

// CString returns a zero-terminated copy of s for C. The caller must keep the copy reachable for as
// long as C uses it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Bytes returns C's memory as a slice, which is valid for as long as C keeps that memory
// allocated.
//
// Preconditions: the memory is readable. If the slice is written to, the memory is also
// writable.
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

// Load returns a copy of the value at a C address.
//
// Preconditions: the memory is readable, and aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointer(address)) }
