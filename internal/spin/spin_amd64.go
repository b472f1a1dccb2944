//go:build !race

package spin

import "unsafe"

// StoreRelease64 stores v in *p with release order.
//
//go:noescape
func StoreRelease64(p *uint64, v uint64)

// StoreRelease32 stores v in *p with release order.
//
//go:noescape
func StoreRelease32(p *uint32, v uint32)

// LoadAcquire64 loads *p with acquire order.
//
//go:noescape
func LoadAcquire64(p *uint64) uint64

// LoadAcquire32 loads *p with acquire order.
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

// PutLine writes a message to the line at dst, which must be aligned to 64 bytes. It writes n bytes
// of payload from src to dst+16, then digest to dst+8, and finally seq to dst, with release order.
// A thread that loads seq with acquire order sees the rest of the line. Payload bytes beyond n keep
// their values. PutLine writes at most LinePayload bytes of payload.
//
//go:noescape
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int)

// PrefetchWrite is a hint that a line is about to be written. It changes no memory, and an unmapped
// address causes no fault. If another thread is still polling the line, the prefetch costs both
// threads an additional transfer of the line.
//
//go:noescape
func PrefetchWrite(line unsafe.Pointer)

// Ticks returns the processor's time-stamp counter, whose frequency is unknown. The counter may
// change its speed if it is not invariant, and may jump back if the processors' counters are not
// synchronized.
func Ticks() uint64
