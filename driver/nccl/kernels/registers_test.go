package kernels

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"
)

// threads is the largest block that Choose asks for, and registers what a multiprocessor has.
const (
	threads   = 512
	registers = 64 << 10
)

// The entries of .nv.info of a binary: format, attribute and size, and then so many bytes. That of
// the registers has the number of the kernel's symbol and the number of registers.
const (
	sized         = 0x04
	registerCount = 0x2f
)

// TestKernelsFitBlocks refuses kernels whose registers do not do for their blocks: the driver would
// refuse to launch them.
func TestKernelsFitBlocks(t *testing.T) {
	for _, major := range []int{8, 9} {
		object, err := Object(major, 0)
		if err != nil {
			t.Fatal(err)
		}
		// NVIDIA writes a version of its own, which the reader does not know.
		object[elf.EI_VERSION] = byte(elf.EV_CURRENT)
		binary.LittleEndian.PutUint32(object[20:], uint32(elf.EV_CURRENT))
		f, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Section(".nv.info").Data()
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		kernels := 0
		for len(info) >= 4 {
			format, attribute := info[0], info[1]
			info = info[2:]
			size := 2
			if format == sized {
				size += int(binary.LittleEndian.Uint16(info))
			}
			if format == sized && attribute == registerCount {
				kernels++
				symbol := symbols[binary.LittleEndian.Uint32(info[2:])-1]
				if n := binary.LittleEndian.Uint32(info[6:]); n*threads > registers {
					t.Errorf("sm_%d0: %s has %d registers, and blocks of %d threads", major, symbol.Name,
						n, threads)
				}
			}
			info = info[size:]
		}
		if kernels == 0 {
			t.Errorf("sm_%d0: no kernel says how many registers it has", major)
		}
	}
}
