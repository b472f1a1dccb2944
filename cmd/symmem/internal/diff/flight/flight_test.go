package flight_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff/load"
	"symmem/cmd/symmem/internal/diff/plain"
)

// text returns the pickle operation that pushes a string of less than 256 bytes.
func text(s string) string { return "\x8c" + string(rune(len(s))) + s }

func dump(entries ...string) []byte {
	return []byte("\x80\x04}(" + text("entries") + "](" + strings.Join(entries, "") + "eu.")
}

func entry(key, value string) string { return "}(" + text(key) + value + "u" }

// TestStackInPlaceOfFrame reads a dump in which a list of frames contains another list of frames
// instead of a frame. The list's number is larger than the number of any frame.
func TestStackInPlaceOfFrame(t *testing.T) {
	b := dump(
		entry("frames", "](}q\x00("+text("name")+text("f")+"ue"),
		entry("frames", "]q\x01(h\x00h\x00e"),
		entry("frames", "](h\x01e"))
	rank, err := load.Read(bytes.NewReader(b), -1)
	if err != nil {
		t.Fatal(err)
	}

	events := rank.Sequences[0].Events
	for i := range events {
		if lines := rank.StackLines(&events[i]); len(lines) > 2 {
			t.Errorf("stack %d = %q; want at most 2 frames", i, lines)
		}
	}
}

// TestSizesOfSharedLists reads sizes in nested lists, each of which contains the same list many
// times. Without a limit, the description of these sizes would be far longer than the file.
func TestSizesOfSharedLists(t *testing.T) {
	const width = 2000
	value := "](" + strings.Repeat("K\x01", width) + "e"
	for depth := byte('\x00'); depth < 3; depth++ {
		value += "q" + string(rune(depth)) + "0](" + strings.Repeat("h"+string(rune(depth)), width) + "e"
	}

	rank, err := load.Read(bytes.NewReader(dump(entry("input_sizes", value))), -1)
	if err != nil {
		if !errors.Is(err, plain.ErrFormat) {
			t.Fatal(err)
		}

		return
	}

	if n := len(rank.Texts[0]); n > 2<<20 {
		t.Errorf("text has %d bytes; want at most 2 MiB", n)
	}
}
