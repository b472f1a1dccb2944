package event

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func drawPlacement(t *rapid.T) Event {
	return Event{
		Kind:      Kind(rapid.IntRange(1, int(kindHistoryEnd)-1).Draw(t, "kind")),
		Stream:    rapid.Uint32Range(0, 3).Draw(t, "stream"),
		Segment:   rapid.Int32Range(-1, 5).Draw(t, "segment"),
		Offset:    rapid.Int64Range(0, 1<<40).Draw(t, "offset"),
		Size:      rapid.Int64Range(0, 1<<40).Draw(t, "size"),
		Requested: rapid.Int64Range(0, 1<<40).Draw(t, "requested"),
		Site:      rapid.StringMatching(`[a-z/]{0,40}\.py:[0-9]{1,4}`).Draw(t, "site"),
	}
}

func TestPlacementRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawPlacement(t)
		back, err := Decode(Append([]byte{7}, &e)[1:])
		if err != nil || back != e {
			t.Fatalf("round trip of %+v = %+v, %v; want the same", e, back, err)
		}
	})
}

func TestDecodeRejectsMalformedBytes(t *testing.T) {
	good := Append(nil, &Event{Kind: KindAlloc})
	change := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	cases := map[string][]byte{
		"nothing":                 {},
		"one byte too few":        good[:len(good)-1],
		"a site that is too long": append(bytes.Clone(good), make([]byte, MaxSiteBytes+1)...),
		"a control character":     append(bytes.Clone(good), "a\x1b[31m"...),
		"half a rune":             append(bytes.Clone(good), 0xe2, 0x82),
		"kind 0":                  change(0, 0),
		"an unknown kind":         change(0, byte(kindHistoryEnd)),
		"a negative offset":       change(16, 0x80),
		"a negative size":         change(24, 0x80),
		"a negative request":      change(32, 0x80),
		"segment -129":            change(8, 0xff),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode(b); !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Append(nil, &Event{Kind: KindAlloc, Segment: -1, Size: 5, Site: "a.py:1"}))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}

			return
		}

		if again := Append(nil, &e); !bytes.Equal(again, b) {
			t.Fatalf("Append(Decode(%x) = %+v) = %x; want the input", b, e, again)
		}
	})
}
