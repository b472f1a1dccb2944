package sys

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTransparentFollowsPolicy(t *testing.T) {
	cases := map[string]struct {
		text, word    string
		isTransparent bool
	}{
		"advise":            {"always [advise] never", "advise", true},
		"never":             {"always within_size [never] deny", "never", false},
		"deny":              {"always never [deny] force", "deny", false},
		"an empty file":     {"", "", false},
		"a missing bracket": {"always [never", "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := HugePages{SharedPolicy: wordInBrackets(c.text)}
			if h.SharedPolicy != c.word || h.IsTransparent() != c.isTransparent {
				t.Errorf("%q: got policy %q, transparent %v; want %q, %v",
					c.text, h.SharedPolicy, h.IsTransparent(), c.word, c.isTransparent)
			}
		})
	}
}

func TestHugePagesIn(t *testing.T) {
	mm := t.TempDir() + "/"
	if got := hugePagesIn(mm); got != (HugePages{}) {
		t.Errorf("without files: got %+v, want the zero value", got)
	}

	for name, text := range map[string]string{
		"hugepages/hugepages-2048kB/nr_hugepages":   "320\n",
		"hugepages/hugepages-2048kB/free_hugepages": "288\n",
		"transparent_hugepage/shmem_enabled":        "always within_size [advise] never deny force\n",
	} {
		check(t, os.MkdirAll(filepath.Dir(mm+name), 0o700))
		check(t, os.WriteFile(mm+name, []byte(text), 0o600))
	}

	want := HugePages{Reserved: 320, Free: 288, SharedPolicy: "advise"}
	if got := hugePagesIn(mm); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
