package main

import (
	"math"
	"slices"
	"testing"
)

func TestSizesHaveNCCLTestsFormat(t *testing.T) {
	for text, want := range map[string]size{
		"8": 8, "64K": 64 << 10, "64k": 64 << 10, "1M": 1 << 20, "2G": 2 << 30, "3MiB": 3 << 20,
		"256Ki": 256 << 10, "0": 0, "1536K": 1536 << 10, "4096G": maxSize,
	} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("Set(%q) = %v and value %d, want value %d", text, err, s, want)
		}

		var parsed size
		if err := parsed.Set(s.String()); err != nil || parsed != s {
			t.Errorf("Set(String()) = %v and value %d for %q, want value %d", err, parsed, text, s)
		}
	}

	for _, text := range []string{
		"", "M", "-1", "1T", "8 K", "1.5M", "9999999999G",
		"9223372036854775807", "4097G",
	} {
		s := size(7)
		if err := s.Set(text); err == nil || s != 7 {
			t.Errorf("Set(%q) = %v and value %d, want an error and the old value", text, err, s)
		}
	}
}

func TestSizeRangesDoNotOverflow(t *testing.T) {
	for _, c := range []struct {
		flags sizeFlags
		want  []int64
	}{
		{sizeFlags{8, 64, 2}, []int64{8, 16, 32, 64}},
		{sizeFlags{8, 63, 2}, []int64{8, 16, 32}},
		{sizeFlags{3, math.MaxInt64, math.MaxInt64 / 2}, []int64{3}},
		{sizeFlags{1, math.MaxInt64, math.MaxInt64}, []int64{1, math.MaxInt64}},
	} {
		if got, err := c.flags.sizes(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("sizes of %+v = %v, %v; want %v", c.flags, got, err, c.want)
		}
	}
}
