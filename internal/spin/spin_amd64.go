//go:build !race

package spin

import "unsafe"

// StoreRelease64 stores v in *p. A thread that loads v with acquire order sees all earlier stores.
//
//go:noescape
func StoreRelease64(p *uint64, v uint64)

// StoreRelease32 is the 32-bit version of StoreRelease64.
//
//go:noescape
func StoreRelease32(p *uint32, v uint32)

// LoadAcquire64 loads *p. No later access is performed before the load.
//
//go:noescape
func LoadAcquire64(p *uint64) uint64

// LoadAcquire32 is the 32-bit version of LoadAcquire64.
//
//go:noescape
func LoadAcquire32(p *uint32) uint32

// Pause executes n PAUSE instructions. Each takes 40 to 140 cycles on current processors.
func Pause(n uint32)

// Until64 polls until *p is want: first up to tight times without a pause, and then up to paused
// times with a PAUSE after each poll. It returns false if no poll finds want. The load that finds
// want has acquire order.
//
//go:noescape
func Until64(p *uint64, want uint64, tight, paused uint32) bool

// UntilAtLeast64 is like Until64, but polls until *p is at least want.
//
//go:noescape
func UntilAtLeast64(p *uint64, want uint64, tight, paused uint32) bool

// PutLine writes a message to the line at dst: n bytes of payload from src to dst+16, then digest
// to dst+8, and finally seq to dst, with release order. A thread that loads seq with acquire order
// sees the rest of the line. Payload bytes beyond n keep their values. If n is larger than
// LinePayload, PutLine writes LinePayload bytes.
//
// dst must be aligned to 64 bytes.
//
//go:noescape
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int)

// PrefetchWrite is a hint that a line is about to be written. The processor then acquires the
// line while this thread continues. PrefetchWrite changes no memory, and an unmapped address
// causes no fault. If another thread is still polling the line, the prefetch costs both threads
// an additional transfer of the line.
//
//go:noescape
func PrefetchWrite(line unsafe.Pointer)

// Ticks returns the processor's time-stamp counter. Its frequency is unknown. If the counter is
// not invariant, it may change its speed. If the processors' counters are not synchronized, it
// may jump back.
func Ticks() uint64
