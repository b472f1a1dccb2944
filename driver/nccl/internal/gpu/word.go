package gpu

import "sync/atomic"

// Word is a word of host memory for which streams can wait.
type Word uint32

// Set writes the word.
func (w *Word) Set(value uint32) { atomic.StoreUint32((*uint32)(w), value) }

// Value reads the word.
func (w *Word) Value() uint32 { return atomic.LoadUint32((*uint32)(w)) }

// Address is where the device finds the word.
func (w *Word) Address() uintptr { return AddressOf(w) }
