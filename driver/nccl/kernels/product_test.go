package kernels

import (
	"encoding/binary"
	"testing"
)

// productNames lists the kernels of products.
func productNames() map[string]bool {
	names := map[string]bool{}
	for n := 1; n <= MaxSequences; n++ {
		names[(&Product{Sequences: n}).Kernel()] = true
	}
	return names
}

func TestGridsOfProducts(t *testing.T) {
	for _, c := range []struct {
		sentence                         string
		rows, depth                      int
		blocks, threads, passes, columns int
	}{
		{"a block has a row, and there are two", 8192, 2048, 264, 256, 1, 2048},
		{"of a longer row one", 8192, 4096, 132, 512, 1, 4096},
		{"of a short one many", 8192, 1024, 528, 128, 1, 1024},
		{"a row that is too long takes passes", 8192, 8192, 132, 512, 2, 8192},
		{"of equal parts", 8192, 17 * 256, 132, 288, 2, 18 * 256},
		{"few rows have few blocks", 17, 2048, 3, 256, 1, 2048},
		{"a part of a tile has a warp", 8, 8, 1, 32, 1, 256},
	} {
		p := Product{Rows: c.rows, Depth: c.depth}
		blocks, threads := p.Grid(132)
		if blocks != c.blocks || threads != c.threads || p.passes() != c.passes {
			t.Errorf("%s: got %d blocks of %d threads, %d passes", c.sentence, blocks, threads, p.passes())
		}
		if got := threads / warp * tileColumns * p.passes(); got != c.columns {
			t.Errorf("%s: %d columns of %d", c.sentence, got, c.depth)
		}
	}
}

// Instructions of compute capability 9.0 have 16 bytes, the lowest 12 bits of which tell what they
// do.
const (
	instructionBytes = 16
	exit             = 0x94d
	load             = 0x981 // from the GPU's memory
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

// TestNoKernelEndsBeforeItHasWaited looks for what makes it enough that each kernel waits for the
// one before it: that has waited for those before.
func TestNoKernelEndsBeforeItHasWaited(t *testing.T) {
	for _, objectFor := range []func(major, minor int) ([]byte, error){Object, ProductObject} {
		object, err := objectFor(9, 0)
		if err != nil {
			t.Fatal(err)
		}
		for kernel, code := range codeIn(t, object) {
			if exits, waits := before(code, exit); !waits || exits > 0 {
				t.Errorf("%s waits: %v; it can end at %d places before", kernel, waits, exits)
			}
			if launches, _ := before(code, launchDependents); launches != 1 {
				t.Errorf("%s lets others come %d times before it waits", kernel, launches)
			}
		}
	}
}

// TestProductsLoadWeightsBeforeTheyWait looks for what the compiler could have put off.
func TestProductsLoadWeightsBeforeTheyWait(t *testing.T) {
	object, err := ProductObject(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	code := codeIn(t, object)
	for kernel, loads := range map[string]int{"product_bf16_4": 16, "product_bf16_8": 8} {
		if n, _ := before(code[kernel], load); n != loads {
			t.Errorf("%s has %d loads before it waits, not %d", kernel, n, loads)
		}
	}
}
