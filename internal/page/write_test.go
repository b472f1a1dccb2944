package page

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// decodedData is the header of a page's data, and the columns that follow it.
type decodedData struct {
	Title     string
	Sequences []struct {
		Tracks []struct {
			Events  int
			Columns map[string]columnLocation
		}
	}
	StackCount int
	Stacks     columnLocation
	columns    []byte // all columns
}

// decode decodes the data of a page in the format that doc.go describes.
func decode(t testing.TB, b []byte) *decodedData {
	t.Helper()
	const prefixBytes, lengthBytes = 8, 4
	const headerStart = prefixBytes + lengthBytes
	if len(b) < headerStart || string(b[:prefixBytes]) != "SYMPAGE\x01" {
		t.Fatalf("data begin with %q; want SYMPAGE\x01", b[:min(len(b), prefixBytes)])
	}

	headerEnd := headerStart + int(binary.LittleEndian.Uint32(b[prefixBytes:]))
	d := &decodedData{columns: b[headerEnd:]}
	if err := json.Unmarshal(b[headerStart:headerEnd], d); err != nil {
		t.Fatal(err)
	}

	return d
}

// values decodes the column at a location. Its varints are unsigned numbers or, if signed is set,
// signed differences from the previous number. values fails the test if a varint is cut off.
func (d *decodedData) values(t testing.TB, at columnLocation, signed bool) []int64 {
	t.Helper()
	var all []int64
	last := int64(0)
	start, length := at[0], at[1]
	for b := d.columns[start : start+length]; len(b) > 0; {
		var value int64
		var bytes int // of the varint, or at most 0 if it is invalid
		if signed {
			value, bytes = binary.Varint(b)
			value += last
		} else {
			var number uint64
			number, bytes = binary.Uvarint(b)
			value = int64(number)
		}

		if bytes <= 0 {
			t.Fatal("a varint is cut off")
		}

		all = append(all, value)
		last = value
		b = b[bytes:]
	}

	return all
}

// encodedValues has, for each column that TestDataRoundTrip checks, the value of an event before it
// is clamped. Segments and stacks are stored plus 1, so that 0 means unknown.
var encodedValues = map[string]func(Event) int64{
	"size":    func(e Event) int64 { return e.Size },
	"bytes":   func(e Event) int64 { return e.Bytes },
	"offset":  func(e Event) int64 { return e.Offset },
	"segment": func(e Event) int64 { return int64(e.Segment) + 1 },
	"stack":   func(e Event) int64 { return int64(e.Stack) + 1 },
	"number":  func(e Event) int64 { return e.Number },
	"time":    func(e Event) int64 { return e.Time },
}

// TestDataRoundTrip encodes random events and decodes their columns. Each value must be clamped to
// the integers that JavaScript represents exactly.
func TestDataRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		track := &Track{}
		var want []Event
		for range rapid.IntRange(0, 20).Draw(rt, "events") {
			e := Event{ // -1 means that the segment, block or stack is unknown
				Kind:    Kind(rapid.IntRange(1, 6).Draw(rt, "kind")),
				Size:    rapid.Int64().Draw(rt, "size"),
				Bytes:   rapid.Int64().Draw(rt, "bytes"),
				Offset:  rapid.Int64().Draw(rt, "offset"),
				Segment: rapid.Int32Min(-1).Draw(rt, "segment"),
				Stream:  rapid.Int32Min(0).Draw(rt, "stream"),
				Block:   rapid.Int32Min(-1).Draw(rt, "block"),
				Stack:   rapid.Int32Min(-1).Draw(rt, "stack"),
				Number:  rapid.Int64().Draw(rt, "number"),
				Time:    rapid.Int64().Draw(rt, "time"),
			}
			track.Add(&e)
			want = append(want, e)
		}

		var b bytes.Buffer
		p := &Page{Title: "t", Sequences: []Sequence{{Tracks: []*Track{track}}}}
		if err := p.WriteData(&b); err != nil {
			t.Fatal(err)
		}

		d := decode(t, b.Bytes())
		got := d.Sequences[0].Tracks[0]
		if got.Events != len(want) || track.Len() != len(want) {
			t.Fatalf("got %d events after decoding; want %d", got.Events, len(want))
		}

		const largestExact = 1<<53 - 1 // Number.MAX_SAFE_INTEGER in JavaScript
		for name, value := range encodedValues {
			isSigned := name == "number" || name == "time"
			values := d.values(t, got.Columns[name], isSigned)
			if len(values) != len(want) {
				t.Fatalf("column %s has %d values; want %d", name, len(values), len(want))
			}

			for i, e := range want {
				clamped := min(max(value(e), 0), largestExact)
				if values[i] != clamped {
					t.Fatalf("event %d: %s = %d; want %d", i, name, values[i], clamped)
				}
			}
		}
	})
}

// TestStacks adds three stacks, one of them empty. AddStack returns their indexes. The column of
// stacks holds the number of frames and the frames of each stack.
func TestStacks(t *testing.T) {
	p := &Page{}
	stacks := [][]int32{{3, 1}, nil, {7}}
	for i, frames := range stacks {
		if got := p.AddStack(frames); got != int32(i) {
			t.Errorf("AddStack = %d; want %d", got, i)
		}
	}

	var b bytes.Buffer
	if err := p.WriteData(&b); err != nil {
		t.Fatal(err)
	}

	d := decode(t, b.Bytes())
	const signed = false
	got := d.values(t, d.Stacks, signed)
	want := []int64{
		2, 3, 1, // 2 frames: 3 and 1
		0, // no frames
		1, 7,
	}
	if d.StackCount != len(stacks) || !slices.Equal(got, want) {
		t.Errorf("got %d stacks %v; want %d stacks %v", d.StackCount, got, len(stacks), want)
	}
}

// TestHTMLOfHostileTexts writes a page whose texts contain HTML. These must not become markup, and
// the data of the page must contain them unchanged.
func TestHTMLOfHostileTexts(t *testing.T) {
	const hostile = `</script></title><script>alert(1)</script><img src=x onerror=alert(2)>`
	track := &Track{Segments: []Segment{{Bytes: math.MaxInt64}}}
	p := &Page{
		Title: hostile, Verdict: hostile, Texts: []string{hostile}, Frames: []string{hostile},
		Ranks:     []Rank{{File: hostile}},
		Sequences: []Sequence{{Title: hostile, Tracks: []*Track{track}}},
	}
	var b bytes.Buffer
	if err := p.WriteHTML(&b, hostile); err != nil {
		t.Fatal(err)
	}

	text := b.String()
	if strings.Contains(text, "<img") || strings.Contains(text, "<script>alert") {
		t.Error("text from the data became markup")
	}

	const wantScripts = 2 // the data and the script of the page
	if n := strings.Count(text, "<script"); n != wantScripts {
		t.Errorf("the page has %d scripts; want %d", n, wantScripts)
	}

	// The data of the page are compressed, and encoded as text.
	packed := regexp.MustCompile(`id="data">([^<]*)</script>`).FindStringSubmatch(text)
	if packed == nil {
		t.Fatal("the page has no data")
	}

	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed[1])))
	if err != nil {
		t.Fatal(err)
	}

	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}

	if got := decode(t, data); got.Title != hostile {
		t.Errorf("got title %q; want %q", got.Title, hostile)
	}
}

// TestShell checks that WriteShell, which writes a page that loads its data from a URL, escapes the
// title and the URL.
func TestShell(t *testing.T) {
	var b bytes.Buffer
	if err := WriteShell(&b, "a<b", `data.bin?x="y"`); err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{"a&lt;b", `data-source="data.bin?x=&#34;y&#34;"></script>`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page does not contain %s", want)
		}
	}
}

// failingWriter is an io.Writer that fails when more than the remaining bytes are written.
type failingWriter struct{ remaining int }

func (f *failingWriter) Write(b []byte) (int, error) {
	f.remaining -= len(b)
	if f.remaining < 0 {
		return 0, io.ErrShortWrite
	}

	return len(b), nil
}

// TestWriteErrors checks that WriteHTML returns the errors of a writer that fails at the start, in
// the middle or at the end of the page.
func TestWriteErrors(t *testing.T) {
	var all bytes.Buffer
	p := &Page{Title: "t"}
	if err := p.WriteHTML(&all, ""); err != nil {
		t.Fatal(err)
	}

	const inTheMiddle = 5000
	for _, n := range []int{0, inTheMiddle, all.Len() - 1} {
		if err := p.WriteHTML(&failingWriter{remaining: n}, ""); err == nil {
			t.Errorf("WriteHTML = nil with a writer that fails after %d bytes; want an error", n)
		}
	}
}
