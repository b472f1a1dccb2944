package main

import (
	"testing"

	"pgregory.net/rapid"
)

func TestASizeIsANumberWithOrWithoutAUnit(t *testing.T) {
	for text, want := range map[string]size{
		"0": 0, "1024": 1024, "1Ki": 1024, "256Ki": 256 << 10, "1Mi": 1 << 20, "3Gi": 3 << 30,
	} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%q: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "Ki", "-1", "1K", "1kI", "1.5Mi", "9223372036854775807Ki"} {
		var s size
		if err := s.Set(text); err == nil {
			t.Errorf("%q was taken for %d", text, s)
		}
	}
}

func TestASizeReadsWhatItWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := size(rapid.Int64Min(0).Draw(t, "number")) << rapid.IntRange(0, 20).Draw(t, "shift")
		if want < 0 {
			t.Skip("shifted out")
		}
		var got size
		if err := got.Set(want.String()); err != nil || got != want {
			t.Fatalf("%d wrote %q and read %d: %v", want, want.String(), got, err)
		}
	})
}
