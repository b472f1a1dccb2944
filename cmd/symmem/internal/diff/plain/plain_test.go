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

// walk checks that no method panics on v or on the values in v. It stops after maxDepth levels,
// because a list in a pickle can contain itself.
func walk(d *Document, v Value, maxDepth int) {
	// Only panics matter, not the results.
	_, _ = d.StringOf(v)
	_, _ = v.Int()
	_, _ = v.RoundedInt()
	_ = v.Bool()
	_ = d.Get(v, d.StringValue("segments"))
	if maxDepth == 0 {
		return
	}

	for _, item := range d.Items(v) {
		walk(d, item, maxDepth-1)
	}
}

// decode decodes a file and walks the values. If Decode fails, its error must be ErrFormat.
func decode(t *testing.T, file []byte) error {
	t.Helper()
	const maxDepth = 4
	d, v, err := Decode(bytes.NewReader(file), Options{})
	if err != nil {
		if !errors.Is(err, ErrFormat) {
			t.Fatalf("Decode = %v; want ErrFormat", err)
		}

		return err
	}

	walk(d, v, maxDepth)
	return nil
}

// Decode returns a document or ErrFormat for any pickle.
func FuzzPickle(f *testing.F) {
	const protocolOpcode = "\x80" // followed by the version
	const protocol2 = "\x02"
	const protocol4 = "\x04"
	for _, body := range []string{
		// A dictionary with a list of integers of different sizes.
		"}\x8c\x08segments]\x94(K\x01M\x00\x02J\x00\x00\x00\x01\x8a\x02\x00\x01es.",
		// A tuple of a list that contains itself, a pair, a dictionary and two booleans.
		"(]\x94h\x00aK\x01K\x02\x86\x94}(\x8c\x01aNu\x88\x89t.",
		// A call of os.system.
		"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
		// A string whose length is the largest int64.
		"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
	} {
		f.Add([]byte(protocol4 + body))
		f.Add([]byte(protocol2 + body))
	}

	f.Fuzz(func(t *testing.T, versionAndBody []byte) {
		file := append([]byte(protocolOpcode), versionAndBody...)
		_ = decode(t, file) // has checked the kind of error
	})
}

// Decode accepts every list or object that encoding/json accepts.
func FuzzJSON(f *testing.F) {
	for _, file := range []string{
		`{"segments": [{"address": 1, "blocks": []}], "t": [1.5, -3e2, true, null, "\u00e4"]}`,
		`[[], {}, 18446744073709551615]`,
		`{"a": 1,}`,
		`[1, 2`,
		`{"a": {"b": `,
	} {
		f.Add([]byte(file))
	}

	f.Fuzz(func(t *testing.T, file []byte) {
		file = bytes.TrimSpace(file)
		isObject := bytes.HasPrefix(file, []byte("{"))
		isList := bytes.HasPrefix(file, []byte("["))
		if !isObject && !isList {
			return // not supported
		}

		err := decode(t, file)
		if json.Valid(file) && err != nil {
			t.Errorf("Decode = %v; want no error, because the file is valid JSON", err)
		}
	})
}

func TestReadErrorAfterValueIsReturned(t *testing.T) {
	broken := errors.New("broken disk")
	file := io.MultiReader(strings.NewReader(`{"segments": []}`), iotest.ErrReader(broken))
	if _, _, err := Decode(file, Options{}); !errors.Is(err, broken) {
		t.Errorf("Decode = %v; want %v", err, broken)
	}
}
