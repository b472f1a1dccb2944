package kernels

import (
	"encoding/binary"
	"strings"
	"testing"
)

// An instruction of compute capability 9.0 has 16 bytes. Its lowest 12 bits are the opcode.
const (
	instructionBytes = 16
	exit             = 0x94d
	launchDependents = 0x82d // griddepcontrol.launch_dependents
	wait             = 0x82e // griddepcontrol.wait
)

// countBeforeWait counts the instructions with the given opcode before the first wait
// instruction. waits reports whether there is a wait instruction.
func countBeforeWait(code []byte, opcode uint16) (n int, waits bool) {
	for offset := 0; offset < len(code); offset += instructionBytes {
		switch binary.LittleEndian.Uint16(code[offset:]) & 0xfff {
		case wait:
			return n, true
		case opcode:
			n++
		}
	}

	return n, false
}

// TestNoKernelExitsBeforeItsWait checks that no kernel can exit before its predecessor has
// exited. A kernel that waits for its predecessor then waits for all earlier kernels.
func TestNoKernelExitsBeforeItsWait(t *testing.T) {
	object, err := Object(9, 0)
	if err != nil {
		t.Fatal(err)
	}

	for kernel, code := range kernelCode(t, object) {
		if kernel == AfterAll {
			continue // it is never launched with overlap
		}

		if exits, waits := countBeforeWait(code, exit); !waits || exits > 0 {
			t.Errorf("countBeforeWait(%s, exit) = %d, %t; want 0, true", kernel, exits, waits)
		}

		want := 1
		if strings.HasSuffix(kernel, "_any") {
			want = 0
		}

		if launches, _ := countBeforeWait(code, launchDependents); launches != want {
			t.Errorf("%s has %d launch_dependents before its wait, want %d", kernel, launches, want)
		}
	}
}
