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

// before counts the instructions of a kind before the first wait. waits reports whether there is a
// wait.
func before(code []byte, kind uint16) (n int, waits bool) {
	for at := 0; at < len(code); at += instructionBytes {
		switch binary.LittleEndian.Uint16(code[at:]) & 0xfff {
		case wait:
			return n, true
		case kind:
			n++
		}
	}
	return n, false
}

// TestNoKernelExitsBeforeItsWait checks that a kernel cannot end before its predecessor has ended.
// A kernel that waits for one predecessor then waits for all of them.
func TestNoKernelExitsBeforeItsWait(t *testing.T) {
	object, err := Object(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	for kernel, code := range codeIn(t, object) {
		if kernel == AfterAll {
			continue // it is never launched to overlap
		}
		if exits, waits := before(code, exit); !waits || exits > 0 {
			t.Errorf("%s: got a wait = %t with %d exits before it, want true with 0", kernel, waits, exits)
		}
		want := 1
		if strings.HasSuffix(kernel, "_any") {
			want = 0
		}
		if launches, _ := before(code, launchDependents); launches != want {
			t.Errorf("%s: got %d launch_dependents before its wait, want %d", kernel, launches, want)
		}
	}
}
