//go:build linux

#include "go_asm.h"
#include "textflag.h"

GLOBL ·callABI0(SB), NOPTR|RODATA, $8
DATA ·callABI0(SB)/8, $call(SB)

// call makes the call that a frame describes, after the frame's step if there is one. It runs on a
// system stack, with the calling convention of C (System V amd64 ABI), and gets the frame's address
// in DI. It returns the low 32 bits of the result of the last call. It does not access the frame
// after that call, because the frame may be on a goroutine's stack, which moves if C calls back. If
// frame.result is not 0, all 64 bits are stored at that address.
//
// The assembler adds a slot for BP to the stack frame, so that the stack is aligned to 16 bytes at
// a CALL.
TEXT call(SB), NOSPLIT, $64
	MOVQ frame_step(DI), R11
	TESTQ R11, R11
	JZ main
	MOVQ DI, 48(SP)
	MOVQ frame_stepArgument(DI), DI
	XORL AX, AX
	CALL R11
	TESTL AX, AX
	JNZ stepFailed
	MOVQ 48(SP), DI
main:
	MOVQ DI, R11
	MOVQ (frame_arguments+48)(R11), R10
	MOVQ R10, 0(SP)
	MOVQ (frame_arguments+56)(R11), R10
	MOVQ R10, 8(SP)
	MOVQ (frame_arguments+64)(R11), R10
	MOVQ R10, 16(SP)
	MOVQ (frame_arguments+72)(R11), R10
	MOVQ R10, 24(SP)
	MOVQ (frame_arguments+80)(R11), R10
	MOVQ R10, 32(SP)
	MOVQ (frame_arguments+88)(R11), R10
	MOVQ R10, 40(SP)
	MOVQ frame_result(R11), R10
	MOVQ R10, 56(SP)
	MOVQ (frame_arguments+0)(R11), DI
	MOVQ (frame_arguments+8)(R11), SI
	MOVQ (frame_arguments+16)(R11), DX
	MOVQ (frame_arguments+24)(R11), CX
	MOVQ (frame_arguments+32)(R11), R8
	MOVQ (frame_arguments+40)(R11), R9
	MOVQ frame_function(R11), R11
	XORL AX, AX
	CALL R11
	MOVQ 56(SP), R11
	TESTQ R11, R11
	JZ done
	MOVQ AX, 0(R11)
done:
	RET
stepFailed:
	ORL $const_stepFailed, AX
	RET
