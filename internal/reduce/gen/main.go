// Command gen generates the vector kernels of package reduce: for every instruction set, an
// assembly file with a kernel for each operation and element type, a table of the kernels, and the
// function that Go calls. Run it with "go generate" in the directory of package reduce.
//
// # Shape of a kernel
//
// A kernel processes the byte offsets in [from, to). It loads a block of the first source into
// accumulators, and combines the same block of every further source with them in order. It then may
// multiply or divide, packs the accumulators into the element type, and stores the block to every
// destination. AVX-512 kernels process the remaining bytes one masked line at a time. AVX2 kernels
// process only whole vectors.
//
// # Registers
//
//	DI, R8    destinations: array of pointers, number of pointers
//	SI, R9    sources: array of pointers, number of pointers
//	R10, R11  from (which advances), to
//	R12       the last offset at which a whole block fits
//	BX        flags: 1 stream, 2 multiply at the end, 4 divide at the end, 8 stop at a block with
//	          a result that is infinite or a NaN
//	DX        pointer to kernelParams: the divisor or factor, and the place to store R10 when the
//	          kernel stops
//	AX        the current pointer
//	CX        counts sources and destinations
//	R13       in the loops for two sources, the first destination, while AX and CX are the sources
//	          and DX is the second destination
//	R14       scratch
//	K1        lanes of the last line
//	K2        scratch
//
// Vector registers 0 to 7 are accumulators, 8 to 11 are scratch, and 12 to 15 hold constants. With
// AVX-512, they are Z16 to Z31, which need no VZEROUPPER before the return.
package main

import (
	"fmt"
	"os"
)

func main() {
	for _, set := range []instructionSet{avx512{}, avx2{}} {
		name := fileName(set)
		if err := os.WriteFile(name, assemble(set), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "writing kernels: %v\n", err)
			os.Exit(1)
		}
	}
}
