//go:build !race

#include "textflag.h"

// func StoreRelease64(p *uint64, v uint64)
TEXT ·StoreRelease64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// func StoreRelease32(p *uint32, v uint32)
TEXT ·StoreRelease32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), BX
	MOVL BX, (AX)
	RET

// func LoadAcquire64(p *uint64) uint64
TEXT ·LoadAcquire64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ (AX), BX
	MOVQ BX, ret+8(FP)
	RET

// func LoadAcquire32(p *uint32) uint32
TEXT ·LoadAcquire32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL (AX), BX
	MOVL BX, ret+8(FP)
	RET

// func Pause(n uint32)
TEXT ·Pause(SB), NOSPLIT, $0-4
	MOVL  n+0(FP), CX
	TESTL CX, CX
	JEQ   done

again:
	PAUSE
	DECL CX
	JNE  again

done:
	RET

// func Until64(p *uint64, want uint64, tight, paused uint32) bool
TEXT ·Until64(SB), NOSPLIT, $0-25
	MOVQ p+0(FP), AX
	MOVQ want+8(FP), BX
	MOVL tight+16(FP), CX
	MOVL paused+20(FP), DX

tight:
	SUBL $1, CX
	JCS  paused
	CMPQ (AX), BX
	JNE  tight
	MOVB $1, ret+24(FP)
	RET

paused:
	SUBL  $1, DX
	JCS   spent
	CMPQ  (AX), BX
	JEQ   found
	PAUSE
	JMP   paused

found:
	MOVB $1, ret+24(FP)
	RET

spent:
	MOVB $0, ret+24(FP)
	RET

// func UntilAtLeast64(p *uint64, want uint64, tight, paused uint32) bool
TEXT ·UntilAtLeast64(SB), NOSPLIT, $0-25
	MOVQ p+0(FP), AX
	MOVQ want+8(FP), BX
	MOVL tight+16(FP), CX
	MOVL paused+20(FP), DX

tight:
	SUBL $1, CX
	JCS  paused
	CMPQ (AX), BX
	JCS  tight
	MOVB $1, ret+24(FP)
	RET

paused:
	SUBL  $1, DX
	JCS   spent
	CMPQ  (AX), BX
	JCC   found
	PAUSE
	JMP   paused

found:
	MOVB $1, ret+24(FP)
	RET

spent:
	MOVB $0, ret+24(FP)
	RET

// func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int)
// If n is not a multiple of their size, the pieces that are copied overlap, so that nothing beyond
// src+n is read and nothing beyond dst+16+n is written.
TEXT ·PutLine(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ digest+16(FP), DX
	MOVQ src+24(FP), SI
	MOVQ n+32(FP), CX
	MOVQ DX, 8(DI)
	CMPQ CX, $16
	JLT  under16
	CMPQ CX, $48
	JLE  sixteens
	MOVL $48, CX

sixteens:
	MOVOU (SI), X0
	MOVOU X0, 16(DI)
	MOVOU -16(SI)(CX*1), X1
	CMPQ  CX, $32
	JLE   last
	MOVOU 16(SI), X2
	MOVOU X2, 32(DI)

last:
	MOVOU X1, (DI)(CX*1)
	JMP   publish

under16:
	CMPQ CX, $8
	JLT  under8
	MOVQ (SI), AX
	MOVQ -8(SI)(CX*1), BX
	MOVQ AX, 16(DI)
	MOVQ BX, 8(DI)(CX*1)
	JMP  publish

under8:
	CMPQ CX, $4
	JLT  bytes
	MOVL (SI), AX
	MOVL -4(SI)(CX*1), BX
	MOVL AX, 16(DI)
	MOVL BX, 12(DI)(CX*1)
	JMP  publish

bytes:
	SUBQ $1, CX
	JLT  publish
	MOVB (SI)(CX*1), AX
	MOVB AX, 16(DI)(CX*1)
	JMP  bytes

publish:
	MOVQ seq+8(FP), AX
	MOVQ AX, (DI)
	RET

// func PrefetchWrite(line unsafe.Pointer)
// PREFETCHW (AX), which the assembler does not know. Processors without it treat the opcode as a NOP.
TEXT ·PrefetchWrite(SB), NOSPLIT, $0-8
	MOVQ line+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08
	RET

// func Ticks() uint64
TEXT ·Ticks(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET

// func goroutine() uintptr
TEXT ·goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
