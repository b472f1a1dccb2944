package sys

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

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

func TestHugePagesAreCountedAsTheSystemDoes(t *testing.T) {
	text, err := os.ReadFile("/proc/meminfo")
	check(t, err)
	if !strings.Contains(string(text), "\nHugepagesize:       2048 kB\n") {
		t.Skip("the system's huge pages are of another size, or it has none")
	}
	_, after, _ := strings.Cut(string(text), "HugePages_Total:")
	words := strings.Fields(after)
	// Others may take pages at any time, so Free is only bounded.
	found := LookAtHugePages()
	if len(words) == 0 || words[0] != strconv.Itoa(found.SetAside) ||
		found.Free < 0 || found.Free > found.SetAside {
		t.Errorf("found %+v, not as in HugePages_Total:%.12q", found, after)
	}
}
