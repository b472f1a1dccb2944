package control

import (
	"strings"
	"testing"
)

func TestMachineName(t *testing.T) {
	for name, want := range map[string]string{
		"node-b.cluster": "node-b.cluster", "": "", "a b\nc": "a_b_c", "\x1b[2Jnode": "?[2Jnode",
		strings.Repeat("x", 300): strings.Repeat("x", maxHostName),
	} {
		if got := MachineName(name); got != want {
			t.Errorf("MachineName(%q) = %q; want %q", name, got, want)
		}
	}
}
