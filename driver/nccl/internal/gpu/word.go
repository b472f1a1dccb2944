package gpu

import "sync/atomic"

// Word is a 32-bit value in page-locked host memory that streams can write and wait for.
type Word uint32

// Set writes the value atomically.
func (w *Word) Set(value uint32) { atomic.StoreUint32((*uint32)(w), value) }

// Value reads the value atomically.
func (w *Word) Value() uint32 { return atomic.LoadUint32((*uint32)(w)) }

// Address returns the address at which the device accesses the word.
func (w *Word) Address() uintptr { return AddressOf(w) }
