package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// slotBytes is the size of the largest value that fits into a Cell.
const slotBytes = 128

// slot is reusable heap memory for the arguments of calls. It consists of words, so that it is
// aligned for all types.
type slot [slotBytes / 8]uint64

var slots = sync.Pool{New: func() any { return new(slot) }}

// Cell holds a value of type T that C reads or writes. States: held (after NewCell), then released
// (by Take), which ends its use. Take must wait until C no longer uses the memory; a cell that is
// never released is left to the garbage collector, at the cost of an allocation.
//
// T consists of numbers, arrays and structures of them. It must not contain Go pointers, which the
// collector would not see there.
type Cell[T any] struct{ at *slot }

// NewCell returns a cell that holds a value. It panics if T has more than 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > slotBytes {
		panic("dl: the value is larger than a cell")
	}
	c := Cell[T]{slots.Get().(*slot)}
	*c.value() = value
	return c
}

func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.at)) }

// Address returns the address for C.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.at)) }

// Take returns the value and releases the cell. It must be called after the call into C, which also
// keeps the cell alive until then.
func (c Cell[T]) Take() T {
	value := *c.value()
	slots.Put(c.at)
	return value
}

// never is always false, but the compiler must assume that sink is assigned and let arguments
// escape.
var (
	never bool
	sink  unsafe.Pointer
)

// AddressOf returns the address of a variable for C. It makes the variable escape to the heap, so
// that its address stays valid. The caller keeps it reachable, by runtime.KeepAlive after the call
// or by a lasting reference, for as long as C uses it.
func AddressOf[T any](p *T) uintptr {
	if never {
		atomic.StorePointer(&sink, unsafe.Pointer(p))
	}
	return uintptr(unsafe.Pointer(p))
}

// CString returns a zero-terminated copy of s for C. The caller keeps it reachable for as long as C
// uses it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// pointer converts an address from C to a pointer. It must not point into Go's heap.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Bytes returns C's memory as a slice, which is valid for as long as C keeps that memory.
//
// Preconditions: the memory is readable, and writable if the slice is written to.
func Bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointer(address)), length)
}

// GoString copies C's zero-terminated string at an address; address 0 gives "".
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

// Load copies a C value at an address.
//
// Preconditions: the memory is readable, and aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointer(address)) }
