package plain

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// walk visits the values in v up to a depth, because a list in a pickle can contain itself.
func walk(d *Document, v Value, depth int) {
	_, _ = d.StringOf(v)
	_, _ = v.Int()
	_, _ = v.RoundedInt()
	_ = v.Bool()
	_ = d.Get(v, d.StringValue("segments"))
	if depth == 0 {
		return
	}
	for _, item := range d.Items(v) {
		walk(d, item, depth-1)
	}
}

// decode decodes a file and visits its values.
func decode(t *testing.T, file []byte) error {
	t.Helper()
	d, v, err := Decode(bytes.NewReader(file), Options{})
	if err != nil {
		if !errors.Is(err, ErrFormat) {
			t.Fatalf("Decode = %v; want ErrFormat", err)
		}
		return err
	}
	walk(d, v, 4)
	return nil
}

// FuzzPickle decodes damaged pickles: Decode must return a document or ErrFormat.
func FuzzPickle(f *testing.F) {
	for _, body := range []string{
		"}\x8c\x08segments]\x94(K\x01M\x00\x02J\x00\x00\x00\x01\x8a\x02\x00\x01es.",
		"(]\x94h\x00aK\x01K\x02\x86\x94}(\x8c\x01aNu\x88\x89t.",
		"cos\nsystem\n(X\x04\x00\x00\x00truetR.", "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
	} {
		f.Add([]byte("\x04" + body))
		f.Add([]byte("\x02" + body))
	}
	f.Fuzz(func(t *testing.T, file []byte) { _ = decode(t, append([]byte("\x80"), file...)) })
}

// FuzzJSON compares which files Decode and encoding/json accept.
func FuzzJSON(f *testing.F) {
	for _, file := range []string{
		`{"segments": [{"address": 1, "blocks": []}], "t": [1.5, -3e2, true, null, "\u00e4"]}`,
		`[[], {}, 18446744073709551615]`, `{"a": 1,}`, `[1, 2`, `{"a": {"b": `,
	} {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if file = bytes.TrimSpace(file); len(file) == 0 || file[0] != '{' && file[0] != '[' {
			return
		}
		err := decode(t, file)
		if json.Valid(file) && err != nil {
			t.Errorf("Decode = %v; want no error, because the file is valid JSON", err)
		}
	})
}

// TestReadErrorAfterValueIsReturned checks that an error of the reader is not taken for text after
// the end of a JSON value.
func TestReadErrorAfterValueIsReturned(t *testing.T) {
	broken := errors.New("broken disk")
	file := io.MultiReader(strings.NewReader(`{"segments": []}`), iotest.ErrReader(broken))
	if _, _, err := Decode(file, Options{}); !errors.Is(err, broken) {
		t.Errorf("Decode = %v; want %v", err, broken)
	}
}
