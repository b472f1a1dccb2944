package main

import "testing"

func TestBytesAreReadAsNCCLTestsReadsThem(t *testing.T) {
	for text, want := range map[string]bytesFlag{
		"8": 8, "64K": 64 << 10, "64k": 64 << 10, "1M": 1 << 20, "2G": 2 << 30, "3MiB": 3 << 20,
		"0": 0, "1536K": 1536 << 10, "4096G": maxBytes,
	} {
		var b bytesFlag
		if err := b.Set(text); err != nil || b != want {
			t.Errorf("%q: got %d (%v), want %d", text, b, err, want)
		}
		var again bytesFlag
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q: written as %q, read as %d (%v)", text, b.String(), again, err)
		}
	}
	for _, text := range []string{
		"", "M", "-1", "1T", "8 K", "1.5M", "9999999999G",
		"9223372036854775807", "4097G",
	} {
		b := bytesFlag(7)
		if err := b.Set(text); err == nil || b != 7 {
			t.Errorf("%q was taken as %d", text, b)
		}
	}
}
