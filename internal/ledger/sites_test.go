package ledger

import (
	"strings"
	"testing"

	"symmem/event"
)

func TestSitesAreInternedOnce(t *testing.T) {
	s := NewSites()
	a := s.Intern(0x10, "a.go:1")
	if b := s.Intern(0x20, "a.go:1"); b != a {
		t.Errorf("Intern of the same line = %d, then %d; want the same index", a, b)
	}

	if c := s.Intern(0, "b.go:2"); c == a || s.At(c) != "b.go:2" {
		t.Errorf("At(%d) = %q; want b.go:2 at another index than %d", c, s.At(c), a)
	}

	if i, ok := s.Index(0x20); !ok || i != a || s.At(i) != "a.go:1" {
		t.Errorf("Index(0x20) = %d, %v; want %d, true", i, ok, a)
	}

	if _, ok := s.Index(0x30); ok {
		t.Error("Index(0x30) = true; want false")
	}

	if s.At(0) != "" || s.At(99) != "" || s.Intern(0, "") != 0 || len(s.names) != 2 {
		t.Errorf("got %d names after unknown sites; want 2", len(s.names))
	}

	if n := testing.AllocsPerRun(100, func() { s.Index(0x10) }); n != 0 {
		t.Errorf("got %v allocations; want 0", n)
	}
}

func TestLongSitesKeepTheirEnd(t *testing.T) {
	s := NewSites()
	long := s.At(s.Intern(0, strings.Repeat("é/", 200)+"x.py:3"))
	if len(long) > event.MaxSiteBytes || !strings.HasSuffix(long, "/x.py:3") {
		t.Errorf("got %q; want at most %d bytes with the end /x.py:3", long, event.MaxSiteBytes)
	}

	if got := s.At(s.Intern(0, "a\nb\xff.py:1")); got != "a?b?.py:1" {
		t.Errorf("got %q; want a?b?.py:1", got)
	}
}

func TestFullTableReturnsUnknownSite(t *testing.T) {
	s := NewSites()
	s.names = make([]string, MaxSites)
	if i := s.Intern(0, "one.go:1"); i != 0 {
		t.Errorf("Intern = %d; want 0", i)
	}
}
