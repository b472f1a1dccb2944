package kernels

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Threads that run on a multiprocessor of a GPU share its 65536 registers. For example, a kernel
// needs 60 registers for each thread, and 1024 of its threads must fit on a multiprocessor at the
// same time. A thread gets a multiple of 8 registers, here 64. The threads use 64*1024 = 65536
// registers, so they just fit. A cubin (a compiled object) says how many registers a kernel needs.

const (
	multiprocessorRegisters = 64 << 10
	registerUnit            = 8 // a thread gets a multiple of this number
)

// familyOf returns the argument of Launch.resident for a line kernel, or "" for other kernels. A
// line kernel sends small amounts of data as lines. Its name has the number of ranks at the end:
// "wide_sum_f32_2" has the family "wide". With "_any" at the end, the family is the name.
func familyOf(kernel string) string {
	if strings.HasSuffix(kernel, "_any") && !strings.HasPrefix(kernel, "bulk") {
		return kernel
	}

	for _, family := range []string{"line_two_shot", "line", "wide", "unrolled"} {
		if strings.HasPrefix(kernel, family+"_") {
			return family
		}
	}

	return ""
}

// ranksOf returns the largest number of ranks for which a kernel is made, which most names end in.
// ok is false if the name has none.
func ranksOf(kernel string) (ranks int, ok bool) {
	suffix := kernel[strings.LastIndex(kernel, "_")+1:]
	if suffix == "any" {
		return MaxRanks, true
	}

	ranks, err := strconv.Atoi(suffix)
	return ranks, err == nil
}

// requiredThreads returns the number of threads of a kernel that must fit on a multiprocessor at
// the same time.
func requiredThreads(kernel string) int {
	const oneBlock = maxRowThreads
	ranks, hasRanks := ranksOf(kernel)
	isLineKernel := familyOf(kernel) != "" && hasRanks
	switch {
	case slices.Contains(Retired, kernel):
		return oneBlock
	case strings.HasPrefix(kernel, "norm_local"):
		return 2 * oneBlock
	case strings.HasPrefix(kernel, "norm_"):
		const headerWarps = 1 // exchange headers; the other warps move data
		return (maxRowWarps + headerWarps) * warp
	case strings.HasPrefix(kernel, "route_line_") && ranks <= 4:
		return routeThreads + 4*warp // leaves space for a small call of another group
	case isLineKernel:
		return threadsOfLineKernel(familyOf(kernel), ranks)
	default:
		return oneBlock
	}
}

// threadsOfLineKernel returns how many threads of a line kernel a multiprocessor must run at the
// same time, so that all blocks of the largest call run at the same time.
func threadsOfLineKernel(family string, ranks int) int {
	const multiprocessors = 100 // any number
	l := &Launch{Ranks: ranks, Multiprocessors: multiprocessors}
	grid := l.resident(family)
	blocksEach := (grid.blocks + multiprocessors - 1) / multiprocessors // rounded up
	return blocksEach * grid.threads
}

// Section .nv.info of a cubin is a list of entries:
//
//	byte 0      format
//	byte 1      attribute
//	bytes 2, 3  size of the data if the format is sizedFormat, and otherwise the data
//	from 4      data if the format is sizedFormat
//
// The data of attribute registerCount is the index of the kernel's symbol and the number of
// registers, each in 4 bytes.
const (
	sizedFormat   = 0x04
	registerCount = 0x2f
	headBytes     = 4 // bytes 0 to 3
)

// TestKernelsFitBlocks checks that a multiprocessor has enough registers for each kernel's threads.
func TestKernelsFitBlocks(t *testing.T) {
	for major := range binaries { // of the compute capability, which is the version of a GPU
		counts := registersByKernel(t, major)
		if len(counts) == 0 {
			t.Errorf("%s: found no register counts", architecture(major))
		}

		for kernel, count := range counts {
			registers := (count + registerUnit - 1) / registerUnit * registerUnit // rounded up
			threads := requiredThreads(kernel)
			if registers*threads > multiprocessorRegisters {
				t.Errorf("%s: %s has %d registers per thread, too many for %d threads on a "+
					"multiprocessor", architecture(major), kernel, registers, threads)
			}
		}
	}
}

// registersByKernel returns the number of registers of a thread for each kernel in all cubins.
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

// registerCounts returns the number of registers of a thread for each kernel of a cubin.
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

		if format == sizedFormat && attribute == registerCount {
			data := info[headBytes:]
			symbolIndex := binary.LittleEndian.Uint32(data)
			symbol := symbols[symbolIndex-1] // Symbols leaves out the symbol with index 0
			found[symbol.Name] = int(binary.LittleEndian.Uint32(data[4:]))
		}

		info = info[entryBytes:]
	}

	return found
}
