package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// capability describes a kind of name on which users depend, and which tests must use.
type capability struct {
	kind         string
	declarations string         // files, as a pattern
	section      *regexp.Regexp // matches the declarations in a file; nil means the whole file
	name         *regexp.Regexp // matches a declaration; the first group is the name
	tests        []string
	prefix       string // precedes the name in tests
}

var capabilities = []capability{
	{
		kind: "command", declarations: "cmd/symmem/*.go",
		name:  regexp.MustCompile(`\bUse:\s+"([a-z]+)`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "flag", declarations: "cmd/symmem/*.go", prefix: "--",
		name:  regexp.MustCompile(`lags(?:\(\))?\.\w*VarP?\([^"]*"([a-z-]+)"`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "C function", declarations: "cmd/libsymmem/symmem.h",
		name:  regexp.MustCompile(`(?m)^[a-z][\w ]* \*?((?:symmem|nccl)_\w+)\(`),
		tests: []string{"cmd/libsymmem/testdata/*"},
	},
	{
		kind: "Python name", declarations: "python/src/symmem/__init__.py",
		section: regexp.MustCompile(`(?s)__all__ = \[.*?\]`),
		name:    regexp.MustCompile(`"(\w+)"`),
		tests:   []string{"python/tests/*.py", "python/tests/programs/*.py"},
	},
}

// exemptNames lists names that no test must use: the root command, names that symmem uses to start
// ranks, and flags that are tested without the command.
var exemptNames = map[string]bool{
	"symmem": true, "pin": true, "started": true,
	"in-place": true, "min-bytes": true, "nccl": true, "prove": true, "redop": true,
	"round-timeout": true,
}

func TestEveryCapabilityHasATest(t *testing.T) {
	for _, c := range capabilities {
		var tests strings.Builder
		for _, pattern := range c.tests {
			tests.WriteString(textOf(t, pattern))
		}
		declarations := textOf(t, c.declarations)
		if c.section != nil {
			declarations = c.section.FindString(declarations)
		}
		names := c.name.FindAllStringSubmatch(declarations, -1)
		if len(names) == 0 {
			t.Errorf("found no %s in %s", c.kind, c.declarations)
		}
		for _, m := range names {
			used := regexp.MustCompile(`(^|\W)` + c.prefix + m[1] + `\b`)
			if !exemptNames[m[1]] && !used.MatchString(tests.String()) {
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
