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
	multiprocessorRegisters = 64 << 10 // registers of a multiprocessor of the GPU
	registerUnit            = 8        // a thread gets a multiple of this number
)

// familyOf returns the family of a line kernel, as in Launch.resident, or "" for other kernels.
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

// requiredThreads returns the number of threads of a kernel that must fit on a multiprocessor at
// the same time. The name of most kernels ends in the largest number of ranks.
func requiredThreads(kernel string) int {
	ranks, err := strconv.Atoi(kernel[strings.LastIndex(kernel, "_")+1:])
	hasRanks := err == nil
	if strings.HasSuffix(kernel, "_any") {
		ranks, hasRanks = MaxRanks, true
	}

	const oneBlock = maxRowThreads
	switch {
	case slices.Contains(Retired, kernel):
		return oneBlock
	case strings.HasPrefix(kernel, "norm_local"):
		return 2 * oneBlock
	case strings.HasPrefix(kernel, "norm_"):
		return (maxRowWarps + 1) * warp // with the warp that exchanges headers
	case strings.HasPrefix(kernel, "route_line_") && ranks <= 4:
		return routeThreads + 4*warp // leaves space for a small call of another group
	case familyOf(kernel) == "" || !hasRanks: // not a line kernel
		return oneBlock
	}

	// The threads of all blocks that a line kernel needs at the same time, for each multiprocessor.
	const multiprocessors = 100 // any number
	l := &Launch{Ranks: ranks, Multiprocessors: multiprocessors}
	grid := l.resident(familyOf(kernel))
	blocksEach := (grid.blocks + multiprocessors - 1) / multiprocessors // rounded up
	return blocksEach * grid.threads
}

// Section .nv.info of a cubin (a compiled object) is a list of entries:
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
)

// TestKernelsFitBlocks checks that a multiprocessor has enough registers for each kernel's threads.
func TestKernelsFitBlocks(t *testing.T) {
	for major := range binaries { // of the compute capability
		counts := map[string]int{} // registers of a thread, by kernel
		for _, load := range []func(major, minor int) ([]byte, error){
			Object, NormObject, RouteObject,
		} {
			object, err := load(major, 0)
			if err != nil {
				t.Fatal(err)
			}

			maps.Copy(counts, registerCounts(t, object))
		}

		for kernel, count := range counts {
			registers := (count + registerUnit - 1) / registerUnit * registerUnit
			if threads := requiredThreads(kernel); registers*threads > multiprocessorRegisters {
				t.Errorf("%s: %s has %d registers per thread, too many for %d threads on a "+
					"multiprocessor", architecture(major), kernel, registers, threads)
			}
		}

		if len(counts) == 0 {
			t.Errorf("%s: found no register counts", architecture(major))
		}
	}
}

// registerCounts returns the number of registers that each kernel of a cubin uses.
func registerCounts(t *testing.T, object []byte) map[string]int {
	t.Helper()
	f := parseCubin(t, object)
	info, err := f.Section(".nv.info").Data()
	if err != nil {
		t.Fatal(err)
	}

	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]int{}
	for len(info) >= 4 {
		format, attribute := info[0], info[1]
		entryBytes := 4
		if format == sizedFormat {
			entryBytes += int(binary.LittleEndian.Uint16(info[2:]))
		}

		if format == sizedFormat && attribute == registerCount {
			symbolIndex := binary.LittleEndian.Uint32(info[4:])
			symbol := symbols[symbolIndex-1] // Symbols leaves out the symbol with index 0
			found[symbol.Name] = int(binary.LittleEndian.Uint32(info[8:]))
		}

		info = info[entryBytes:]
	}

	return found
}
