//go:build linux

#include "textflag.h"

GLOBL ·callABI0(SB), NOPTR|RODATA, $8
DATA ·callABI0(SB)/8, $call(SB)

// call makes the call that a frame describes. It runs on a stack of the system, with the calling
// convention of C (System V amd64 ABI): the frame's address comes in DI. The assembler adds a slot
// for BP to the frame size, which aligns the stack to 16 bytes at the CALL.
TEXT call(SB), NOSPLIT, $64
	MOVQ DI, 56(SP)
	MOVQ DI, R11
	MOVQ 56(R11), R10
	MOVQ R10, 0(SP)
	MOVQ 64(R11), R10
	MOVQ R10, 8(SP)
	MOVQ 72(R11), R10
	MOVQ R10, 16(SP)
	MOVQ 80(R11), R10
	MOVQ R10, 24(SP)
	MOVQ 8(R11), DI
	MOVQ 16(R11), SI
	MOVQ 24(R11), DX
	MOVQ 32(R11), CX
	MOVQ 40(R11), R8
	MOVQ 48(R11), R9
	MOVQ 0(R11), R11
	XORL AX, AX
	CALL R11
	MOVQ 56(SP), R11
	MOVQ AX, 88(R11)
	XORL AX, AX
	RET
