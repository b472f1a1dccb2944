package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// capabilities describes a kind of name on which users depend: where such names are declared, and
// which tests must use them.
type capabilities struct {
	kind     string
	declared string         // pattern of the files that declare the names
	section  *regexp.Regexp // if set, matches the part of the files that declares names
	name     *regexp.Regexp // matches a declaration; the first group is the name
	tests    []string
	prefix   string // precedes the name in tests
}

var allCapabilities = []capabilities{
	{
		kind: "command", declared: "cmd/symmem/*.go",
		name:  regexp.MustCompile(`\bUse:\s+"([a-z]+)`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "flag", declared: "cmd/symmem/*.go", prefix: "--",
		name:  regexp.MustCompile(`lags(?:\(\))?\.\w*VarP?\([^"]*"([a-z-]+)"`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "C function", declared: "cmd/libsymmem/symmem.h",
		name:  regexp.MustCompile(`(?m)^[a-z][\w ]* \*?((?:symmem|nccl)_\w+)\(`),
		tests: []string{"cmd/libsymmem/testdata/*"},
	},
	{
		kind: "Python name", declared: "python/src/symmem/__init__.py",
		section: regexp.MustCompile(`(?s)__all__ = \[.*?\]`),
		name:    regexp.MustCompile(`"(\w+)"`),
		tests:   []string{"python/tests/*.py", "python/tests/programs/*.py"},
	},
}

// untested lists names that no test needs to use: the root command, names that symmem itself uses
// to start ranks, and flags whose defaults and values are tested without the command.
var untested = map[string]bool{
	"symmem": true, "pin": true, "started": true,
	"in-place": true, "min-bytes": true, "nccl": true, "prove": true, "redop": true,
	"round-timeout": true,
}

func TestEveryCapabilityHasATest(t *testing.T) {
	for _, c := range allCapabilities {
		var tests strings.Builder
		for _, pattern := range c.tests {
			tests.WriteString(textOf(t, pattern))
		}
		declared := textOf(t, c.declared)
		if c.section != nil {
			declared = c.section.FindString(declared)
		}
		names := c.name.FindAllStringSubmatch(declared, -1)
		if len(names) == 0 {
			t.Errorf("found no %s in %s", c.kind, c.declared)
		}
		for _, m := range names {
			used := regexp.MustCompile(`(^|\W)` + c.prefix + m[1] + `\b`)
			if !untested[m[1]] && !used.MatchString(tests.String()) {
				t.Errorf("no test in %v uses the %s %s%s", c.tests, c.kind, c.prefix, m[1])
			}
		}
	}
}

// textOf returns the concatenated contents of the files that match a pattern. It skips Go tests
// unless the pattern ends in _test.go.
func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") != strings.HasSuffix(pattern, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
