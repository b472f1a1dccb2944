package kernels

import (
	"encoding/binary"
	"strings"
	"testing"
)

// Instructions of compute capability 9.0 have 16 bytes, of which the lowest 12 bits are the opcode.
const (
	instructionBytes = 16
	exit             = 0x94d
	launchDependents = 0x82d // griddepcontrol.launch_dependents
	wait             = 0x82e // griddepcontrol.wait
)

// before counts the instructions of a kind before the first wait. It is false if there is no wait.
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

// TestNoKernelEndsBeforeItHasWaited shows that it is enough if each kernel waits for the one before
// it: that one cannot end before it has waited for those before it.
func TestNoKernelEndsBeforeItHasWaited(t *testing.T) {
	object, err := Object(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	for kernel, code := range codeIn(t, object) {
		if kernel == AfterAll {
			continue // it is never launched to overlap
		}
		if exits, waits := before(code, exit); !waits || exits > 0 {
			t.Errorf("%s waits: %v; it can end in %d places before that", kernel, waits, exits)
		}
		want := 1
		if strings.HasSuffix(kernel, "_any") {
			want = 0
		}
		if launches, _ := before(code, launchDependents); launches != want {
			t.Errorf("%s lets the next kernel launch %d times before it waits, want %d", kernel,
				launches, want)
		}
	}
}
