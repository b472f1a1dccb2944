package dl

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// slotBytes is the size of the largest value that fits into a Cell.
const slotBytes = 128

// slot is memory of the heap that is lent to one call after another. It consists of words, so
// that it is aligned for everything that C puts there.
type slot [slotBytes / 8]uint64

var slots = sync.Pool{New: func() any { return new(slot) }}

// Cell is a place where C finds a value of type T, or leaves one. States: held (from NewCell), then
// released (by Take), which ends its use. Take must wait until C no longer uses the place; a cell
// that is never released is left to the garbage collector, at the cost of an allocation.
//
// T is made of numbers, arrays and structures of them. It must not hold Go pointers, which the
// collector would not see there.
type Cell[T any] struct{ at *slot }

// NewCell takes a place that holds a value. It panics if T has more than 128 bytes.
func NewCell[T any](value T) Cell[T] {
	if unsafe.Sizeof(value) > slotBytes {
		panic("dl: the value is larger than a cell")
	}
	c := Cell[T]{slots.Get().(*slot)}
	*c.value() = value
	return c
}

func (c Cell[T]) value() *T { return (*T)(unsafe.Pointer(c.at)) }

// Address is what C is given.
func (c Cell[T]) Address() uintptr { return uintptr(unsafe.Pointer(c.at)) }

// Take returns what the place holds and releases it. It is called after the call into C, also to
// keep the place until then.
func (c Cell[T]) Take() T {
	value := *c.value()
	slots.Put(c.at)
	return value
}

// never is false, which the compiler does not know; so it must expect sink to be given what it
// could be given.
var (
	never bool
	sink  unsafe.Pointer
)

// AddressOf returns the address of a variable for C. The variable is moved to the heap at compile
// time, so that its address stays. The caller keeps it reachable, by runtime.KeepAlive after the
// call or by a reference that lasts, for as long as C uses it.
func AddressOf[T any](p *T) uintptr {
	if never {
		atomic.StorePointer(&sink, unsafe.Pointer(p))
	}
	return uintptr(unsafe.Pointer(p))
}

// CString returns a copy of s that ends with a zero byte, as C wants it. The caller keeps it
// reachable for as long as C uses it.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// pointer turns an address that C gave into a pointer. It must not be one of Go's heap.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Bytes returns C's memory as a slice, which is valid for as long as C keeps that memory.
//
// Preconditions: C's memory is readable, and writable if the slice is written to.
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

// Load copies a value of C's at an address.
//
// Preconditions: C's memory is readable there, and aligned for T.
func Load[T any](address uintptr) T { return *(*T)(pointer(address)) }
