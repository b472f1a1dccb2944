package sys

import "testing"

func TestPolicyOfSharedFiles(t *testing.T) {
	cases := map[string]struct {
		text, word  string
		transparent bool
	}{
		"the word in brackets is chosen":     {"always [advise] never", "advise", true},
		"never gives none":                   {"always within_size [never] deny", "never", false},
		"deny gives none":                    {"always never [deny] force", "deny", false},
		"no file is no word":                 {"", "", false},
		"half a pair of brackets is no word": {"always [never", "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := HugePages{Shared: chosen(c.text)}
			if h.Shared != c.word || h.Transparent() != c.transparent {
				t.Errorf("%q: got %q, transparent %v", c.text, h.Shared, h.Transparent())
			}
		})
	}
}

func TestHugePagesAreGivenAsLongAsSomeAreFree(t *testing.T) {
	before := LookAtHugePages()
	if before.Free < 0 || before.Free > before.SetAside {
		t.Errorf("%d of %d pages are free", before.Free, before.SetAside)
	}
	f, err := HugeMemfd("test", PageSize)
	if before.SetAside == 0 {
		if err == nil {
			check(t, f.Close())
			t.Error("no page is set aside, but one was given")
		}
		return
	}
	if err == nil {
		check(t, f.Close())
	}
}
