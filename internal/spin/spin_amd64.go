//go:build !race

package spin

import "unsafe"

// StoreRelease64 stores v; who loads it with acquire order sees all that was stored before.
//
//go:noescape
func StoreRelease64(p *uint64, v uint64)

// StoreRelease32 is StoreRelease64 for 32 bits.
//
//go:noescape
func StoreRelease32(p *uint32, v uint32)

// LoadAcquire64 loads *p before anything that follows.
//
//go:noescape
func LoadAcquire64(p *uint64) uint64

// LoadAcquire32 is LoadAcquire64 for 32 bits.
//
//go:noescape
func LoadAcquire32(p *uint32) uint32

// Pause executes n PAUSE instructions, some 40 to 140 cycles each on current processors.
func Pause(n uint32)

// Until64 polls p until it holds want: first tight times in a row, then paused times with a PAUSE
// in between. It returns false when both are used up. The load that found want has acquire order.
//
//go:noescape
func Until64(p *uint64, want uint64, tight, paused uint32) bool

// UntilAtLeast64 is Until64 for any value that is want or more, without wrapping around.
//
//go:noescape
func UntilAtLeast64(p *uint64, want uint64, tight, paused uint32) bool

// PutLine writes a message into the line at dst: n bytes of payload from src at dst+16, digest at
// dst+8, and seq at dst last, with release order. Who has loaded seq with acquire order sees the
// rest. Payload bytes beyond n keep their value.
//
// Preconditions: dst is aligned to 64 and n is at most LinePayload; a larger n writes LinePayload
// bytes.
//
//go:noescape
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int)

// PrefetchWrite tells the processor that a line is about to be written, so that it takes the line
// from whoever has it while this thread goes on. It is a hint: it changes no memory, and an address
// that is not mapped is no fault. Prefetching a line that another thread still polls makes both
// wait once more.
//
//go:noescape
func PrefetchWrite(line unsafe.Pointer)
