package control

import (
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain text is kept", "out of memory: größer\nthan that", "out of memory: größer\nthan that"},
		{"terminal escapes are replaced", "\x1b[2Jall is well\r", "?[2Jall is well?"},
		{"invalid bytes are replaced", "a\xffb", "a?b"},
		{"a long text is truncated", strings.Repeat("x", 5000), strings.Repeat("x", 1000)},
		{"a truncated rune is replaced", strings.Repeat("x", 999) + "ö", strings.Repeat("x", 999) + "?"},
	} {
		if got := Printable(c.text); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
