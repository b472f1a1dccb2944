package reduce

// detectLevel returns the best level that the processor supports and whose registers the system
// saves.
func detectLevel() instructionLevel {
	const (
		osSavesRegisters = 1 << 27 // leaf 1, ECX
		f16c             = 1 << 29
		avx2             = 1 << 5                               // leaf 7, EBX
		avx512           = 1<<8 | 1<<16 | 1<<17 | 1<<30 | 1<<31 // BMI2, F, DQ, BW, VL
		saved256         = 0x06                                 // XCR0
		saved512         = 0xE6
	)
	if leaves, _, _, _ := cpuid(0, 0); leaves < 7 {
		return levelPortable
	}

	_, _, one, _ := cpuid(1, 0)
	if one&(osSavesRegisters|f16c) != osSavesRegisters|f16c {
		return levelPortable
	}

	_, seven, _, _ := cpuid(7, 0)
	saved := xgetbv()
	switch {
	case saved&saved512 == saved512 && seven&(avx2|avx512) == avx2|avx512:
		return levelAVX512
	case saved&saved256 == saved256 && seven&avx2 != 0:
		return levelAVX2
	}

	return levelPortable
}

func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xgetbv returns the lower half of XCR0, a mask of the register states that the system saves.
func xgetbv() uint32
