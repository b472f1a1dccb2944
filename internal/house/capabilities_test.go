package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// capability describes a kind of names on which users depend, such as flags. Tests must use each
// name.
type capability struct {
	kind         string         // in errors
	declarations string         // pattern of the files that declare the names
	section      *regexp.Regexp // matches the part of the files to search; nil means everything
	name         *regexp.Regexp // matches a declaration; its first group is the name
	tests        []string       // patterns of the files that must use the names
	prefix       string         // text before a name in tests
}

var capabilities = []capability{
	{
		kind: "command", declarations: "cmd/symmem/*.go",
		name:  regexp.MustCompile(`\bUse:\s+"([a-z]+)`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "flag", declarations: "cmd/symmem/*.go", prefix: "--",
		// It matches, for example, flags.BoolVar(&f.json, "json" and Flags().IntVarP(&n, "count".
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

// exemptNames lists names that tests need not use: the root command, names with which symmem
// starts ranks, and flags whose effect is tested without the command.
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

		matches := c.name.FindAllStringSubmatch(declarations, -1)
		if len(matches) == 0 {
			t.Errorf("found no %s in %s", c.kind, c.declarations)
		}

		for _, match := range matches {
			name := match[1]
			use := regexp.MustCompile(`(^|\W)` + c.prefix + name + `\b`)
			if !exemptNames[name] && !use.MatchString(tests.String()) {
				t.Errorf("no test in %v uses the %s %s%s", c.tests, c.kind, c.prefix, name)
			}
		}
	}
}

// textOf returns the concatenated contents of the files that match a pattern, relative to the
// module's root. If the pattern ends in _test.go, it reads only Go tests, and otherwise none.
func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
	if err != nil {
		t.Fatal(err)
	}

	var all strings.Builder
	for _, file := range files {
		isTest := strings.HasSuffix(file, "_test.go")
		if isTest != strings.HasSuffix(pattern, "_test.go") {
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
