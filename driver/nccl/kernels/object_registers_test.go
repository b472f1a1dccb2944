package kernels

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	multiprocessorRegisters = 64 << 10 // shared by the threads on a multiprocessor
	registerUnit            = 8        // each thread gets a multiple of 8 registers
)

// familyOf returns the family of a line kernel, such as "wide" for "wide_sum_f32_2", or "" for
// other kernels. The family of a generic kernel is its name.
func familyOf(kernel string) string {
	isGeneric := strings.HasSuffix(kernel, "_any")
	isBulk := strings.HasPrefix(kernel, "bulk")
	if isGeneric && !isBulk {
		return kernel
	}

	for _, family := range []string{"line_two_shot", "line", "wide", "unrolled"} {
		if strings.HasPrefix(kernel, family+"_") {
			return family
		}
	}

	return ""
}

// ranksOf returns the maximum number of ranks of a kernel, if the kernel's name ends in this
// number or in "any".
func ranksOf(kernel string) (ranks int, ok bool) {
	suffix := kernel[strings.LastIndex(kernel, "_")+1:]
	if suffix == "any" {
		return MaxRanks, true
	}

	ranks, err := strconv.Atoi(suffix)
	return ranks, err == nil
}

// requiredThreads returns the number of threads that must fit on a multiprocessor with the kernel.
func requiredThreads(kernel string) int {
	const blockThreads = maxRowThreads
	ranks, hasRanks := ranksOf(kernel)
	isLineKernel := familyOf(kernel) != "" && hasRanks
	switch {
	case slices.Contains(Retired, kernel):
		return blockThreads
	case strings.HasPrefix(kernel, "norm_local"):
		const blocks = 2
		return blocks * blockThreads
	case strings.HasPrefix(kernel, "norm_"):
		const headerWarps = 1 // exchange headers; the other warps move data
		return (maxRowWarps + headerWarps) * warp
	case strings.HasPrefix(kernel, "route_line_") && ranks <= 4:
		const smallCallThreads = 4 * warp // a small call of another group runs alongside
		return routeThreads + smallCallThreads
	case isLineKernel:
		return threadsOfLineKernel(familyOf(kernel), ranks)
	default:
		return blockThreads
	}
}

// threadsOfLineKernel returns requiredThreads of a line kernel, whose blocks must all run at once.
func threadsOfLineKernel(family string, ranks int) int {
	const multiprocessors = 100 // arbitrary
	l := &Launch{Ranks: ranks, Multiprocessors: multiprocessors}
	grid := l.resident(family)
	blocksEach := (grid.blocks + multiprocessors - 1) / multiprocessors // rounded up
	return blocksEach * grid.threads
}

// A cubin (a compiled object) lists the properties of its kernels in section .nv.info. Each entry
// begins with a format byte and an attribute byte. In sizedFormat, a 2-byte size and a value of
// this size follow. In other formats, a 2-byte value follows.
const (
	sizedFormat   = 0x04
	registerCount = 0x2f // attribute with two values of 4 bytes, a symbol index and a count
	headBytes     = 4    // size of an entry without the value of sizedFormat
)

// A multiprocessor has enough registers for all threads that must run on it at once.
func TestKernelsFitBlocks(t *testing.T) {
	for major := range binaries { // major version of the GPU's compute capability
		counts := registersByKernel(t, major)
		if len(counts) == 0 {
			t.Errorf("%s: found no register counts", architecture(major))
		}

		for kernel, count := range counts {
			units := (count + registerUnit - 1) / registerUnit // rounded up
			registers := units * registerUnit
			threads := requiredThreads(kernel)
			if registers*threads > multiprocessorRegisters {
				t.Errorf("%s: %s has %d registers per thread, too many for %d threads on a "+
					"multiprocessor", architecture(major), kernel, registers, threads)
			}
		}
	}
}

// registersByKernel returns the registers per thread of each kernel in all cubins.
func registersByKernel(t *testing.T, major int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, load := range []func(major, minor int) ([]byte, error){
		Object, NormObject, RouteObject,
	} {
		const minor = 0
		cubin, err := load(major, minor)
		if err != nil {
			t.Fatal(err)
		}

		maps.Copy(counts, registerCounts(t, cubin))
	}

	return counts
}

// registerCounts returns the registers per thread of each kernel in a cubin.
func registerCounts(t *testing.T, cubin []byte) map[string]int {
	t.Helper()
	f := parseCubin(t, cubin)
	info, err := f.Section(".nv.info").Data()
	if err != nil {
		t.Fatal(err)
	}

	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]int{}
	for len(info) >= headBytes {
		format := info[0]
		attribute := info[1]
		entryBytes := headBytes
		if format == sizedFormat {
			entryBytes += int(binary.LittleEndian.Uint16(info[2:]))
		}

		isRegisterCount := format == sizedFormat && attribute == registerCount
		if isRegisterCount {
			value := info[headBytes:]
			symbolIndex := binary.LittleEndian.Uint32(value)
			symbol := symbols[symbolIndex-1] // Symbols omits the symbol with index 0
			found[symbol.Name] = int(binary.LittleEndian.Uint32(value[4:]))
		}

		info = info[entryBytes:]
	}

	return found
}
