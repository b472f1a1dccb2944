#include "textflag.h"

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func streamLines(dst, src unsafe.Pointer, size int)
// Every amd64 processor has these instructions. Wider ones gain nothing: the four stores of a line
// leave the core as one. Asking for lines ahead does, because the processor's own prefetching ends
// with each page.
TEXT ·streamLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ size+16(FP), CX

line:
	SUBQ   $64, CX
	JLT    done
	PREFETCHT0 512(SI)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	JMP    line

done:
	RET
