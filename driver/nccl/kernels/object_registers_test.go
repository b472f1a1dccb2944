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
	multiprocessorRegisters = 64 << 10 // registers of a multiprocessor
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

// requiredThreads returns the number of threads of a kernel that must fit on a multiprocessor.
func requiredThreads(kernel string) int {
	ranks, err := strconv.Atoi(kernel[strings.LastIndex(kernel, "_")+1:])
	if strings.HasSuffix(kernel, "_any") {
		ranks, err = MaxRanks, nil
	}
	switch {
	case slices.Contains(Retired, kernel):
		return maxRowThreads
	case strings.HasPrefix(kernel, "norm_local"):
		return 2 * maxRowThreads
	case strings.HasPrefix(kernel, "norm_"):
		return (maxRowWarps + 1) * warp
	case strings.HasPrefix(kernel, "route_line_") && ranks <= 4:
		return routeThreads + 4*warp // leaves space for a small call of another group
	case familyOf(kernel) == "" || err != nil:
		return maxRowThreads
	}
	const multiprocessors = 100
	l := &Launch{Ranks: ranks, Multiprocessors: multiprocessors}
	grid := l.resident(familyOf(kernel))
	return (grid.blocks + multiprocessors - 1) / multiprocessors * grid.threads
}

// The values of the format and the attribute in an entry of section .nv.info with a register
// count. An entry has a format, an attribute, the size of the data, and data: here, the index of
// the kernel's symbol and the number of registers.
const (
	sized         = 0x04
	registerCount = 0x2f
)

// TestKernelsFitBlocks checks that a multiprocessor has enough registers for each kernel's threads.
func TestKernelsFitBlocks(t *testing.T) {
	for major := range binaries {
		counts := map[string]int{}
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
		info = info[2:]
		size := 2
		if format == sized {
			size += int(binary.LittleEndian.Uint16(info))
		}
		if format == sized && attribute == registerCount {
			symbol := symbols[binary.LittleEndian.Uint32(info[2:])-1]
			found[symbol.Name] = int(binary.LittleEndian.Uint32(info[6:]))
		}
		info = info[size:]
	}
	return found
}
