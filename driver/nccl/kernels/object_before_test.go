package kernels

import (
	"encoding/binary"
	"strings"
	"testing"
)

// An instruction of compute capability 9.0 has 16 bytes, whose lowest 12 bits are the opcode.
const (
	instructionBytes = 16
	exit             = 0x94d
	launchDependents = 0x82d // griddepcontrol.launch_dependents
	wait             = 0x82e // griddepcontrol.wait
)

// countBeforeWait counts the instructions with an opcode that precede the first wait. waits reports
// whether there is a wait.
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

// TestNoKernelExitsBeforeItsWait checks that a kernel cannot exit before its predecessor has
// exited, so that a kernel that waits for its predecessor waits for all earlier kernels.
func TestNoKernelExitsBeforeItsWait(t *testing.T) {
	object, err := Object(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	for kernel, code := range kernelCode(t, object) {
		if kernel == AfterAll {
			continue // it is never launched to overlap
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
