package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"symmem/driver"
)

// TestNormsLieWhereKernelsReadThem packs numbers that stand for themselves, and has the compiler
// compare where they lie.
func TestNormsLieWhereKernelsReadThem(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skipf("the headers are compiled: %v", err)
	}
	n := driver.Norm{Rows: 0x101, Hidden: 0x102, Epsilon: 1.5, Residual: 0x103, Weight: 0x104}
	l, local := Launch{norm: true, bytes: 0x105}, Local{Norm: n, Send: 0x106, Recv: 0x107}
	inCall := l.Params(&Arguments{Norm: &n, Send: 0x106, Recv: 0x107})
	inLocal := local.Params()
	var text strings.Builder
	text.WriteString("#include <local.h>\n#include <cstddef>\n")
	for name, params := range map[string]any{"Norm": inCall, "Local": inLocal} {
		packed := reflect.ValueOf(params).FieldByName("packed").Bytes()
		fmt.Fprintf(&text, "static_assert(sizeof(%s) == %d, \"\");\n", name, len(packed))
		for field, value := range map[string]any{
			"rows": uint32(0x101), "hidden": uint32(0x102), "epsilon": float32(1.5),
			"residual": uint64(0x103), "weight": uint64(0x104), "send": uint64(0x106),
			"recv": uint64(0x107),
		} {
			want, err := binary.Append(nil, binary.LittleEndian, value)
			if err != nil {
				t.Fatal(err)
			}
			const both = "static_assert(offsetof(%s, %s) == %d && sizeof(%[1]s::%[2]s) == %[4]d, \"\");\n"
			fmt.Fprintf(&text, both, name, field, bytes.Index(packed, want), len(want))
		}
	}
	source := filepath.Join(t.TempDir(), "layout.cc")
	if err := os.WriteFile(source, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("g++", "-std=c++17", "-w", "-fsyntax-only",
		"-I"+filepath.Join("..", "softgpu", "src", "gpu"), "-Isrc", source)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, said, text.String())
	}
}
