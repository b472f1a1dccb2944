package ledger

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		site := rapid.StringMatching(`[a-z/]{0,40}\.py:[0-9]{1,4}`).Draw(t, "site")
		b := AppendEvent([]byte{7}, e, site)
		back, at, err := DecodeEvent(b[1:])
		sited := back
		sited.Site = e.Site
		if err != nil || sited != e || back.Site != 0 || at != site {
			t.Fatalf("%v at %q was decoded as %v at %q: %v", e, site, back, at, err)
		}
	})
}

func TestMalformedEventsAreRefused(t *testing.T) {
	good := AppendEvent(nil, Event{Kind: KindAlloc}, "")
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
		"an unknown kind":         change(0, byte(kindEnd)),
		"a negative offset":       change(16, 0x80),
		"a negative size":         change(24, 0x80),
		"a negative request":      change(32, 0x80),
		"segment -129":            change(8, 0xff),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			if _, _, err := DecodeEvent(b); !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
		})
	}
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add(AppendEvent(nil, Event{Kind: KindAlloc, Segment: -1, Size: 5}, "a.py:1"))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, site, err := DecodeEvent(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			return
		}
		if again := AppendEvent(nil, e, site); !bytes.Equal(again, b) {
			t.Fatalf("%x was decoded as %v at %q, which encodes as %x", b, e, site, again)
		}
	})
}

func TestSitesAreInternedOnce(t *testing.T) {
	s := NewSites()
	a := s.Intern(0x10, "a.go:1")
	if b := s.Intern(0x20, "a.go:1"); b != a {
		t.Errorf("one line has indices %d and %d", a, b)
	}
	if c := s.Intern(0, "b.go:2"); c == a || s.At(c) != "b.go:2" {
		t.Errorf("index %d is %q", c, s.At(c))
	}
	if i, ok := s.Index(0x20); !ok || i != a || s.At(i) != "a.go:1" {
		t.Errorf("0x20 has index %d, %v", i, ok)
	}
	if _, ok := s.Index(0x30); ok {
		t.Error("an unknown program counter is known")
	}
	if s.At(0) != "" || s.At(99) != "" || s.Intern(0, "") != 0 || len(s.names) != 2 {
		t.Errorf("unknown sites: %d are there", len(s.names))
	}
	if n := testing.AllocsPerRun(100, func() { s.Index(0x10) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLongSitesKeepTheirEnd(t *testing.T) {
	s := NewSites()
	long := s.At(s.Intern(0, strings.Repeat("é/", 200)+"x.py:3"))
	if len(long) > MaxSiteBytes || !strings.HasSuffix(long, "/x.py:3") {
		t.Errorf("got %q", long)
	}
	if got := s.At(s.Intern(0, "a\nb\xff.py:1")); got != "a?b?.py:1" {
		t.Errorf("got %q", got)
	}
}

func TestFullTableReturnsTheUnknownSite(t *testing.T) {
	s := NewSites()
	s.names = make([]string, MaxSites)
	if i := s.Intern(0, "one.go:1"); i != 0 {
		t.Errorf("got index %d", i)
	}
}
