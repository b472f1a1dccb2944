package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Users depend on names of commands, flags, C functions and Python objects. For example, the
// declaration Flags().IntVarP(&n, "count", ...) in a file of cmd/symmem has the name "count". Some
// test or script must use it as --count.

// capability describes a kind of names. Patterns of files are relative to the module's root.
type capability struct {
	kind         string         // in errors
	declarations string         // pattern of the files that declare the names
	section      *regexp.Regexp // matches the part of the files to search; nil means everything
	name         *regexp.Regexp // matches a declaration; its first group is the name
	prefix       string         // text before a name where tests use it
	tests        []string       // patterns of the files of which one must use each name
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

// TestEveryCapabilityHasATest checks that a test uses each name that is not in exemptNames.
func TestEveryCapabilityHasATest(t *testing.T) {
	for _, c := range capabilities {
		names := declaredNames(t, c)
		if len(names) == 0 {
			t.Errorf("found no %s in %s", c.kind, c.declarations)
		}

		var tests strings.Builder
		for _, pattern := range c.tests {
			tests.WriteString(textOf(t, pattern))
		}

		for _, name := range names {
			use := regexp.MustCompile(`(^|\W)` + c.prefix + name + `\b`)
			isUsed := use.MatchString(tests.String())
			if !isUsed && !exemptNames[name] {
				t.Errorf("no test in %v uses the %s %s%s", c.tests, c.kind, c.prefix, name)
			}
		}
	}
}

// declaredNames returns the names that a capability's declarations contain.
func declaredNames(t *testing.T, c capability) (names []string) {
	t.Helper()
	declarations := textOf(t, c.declarations)
	if c.section != nil {
		declarations = c.section.FindString(declarations)
	}

	for _, match := range c.name.FindAllStringSubmatch(declarations, -1) {
		names = append(names, match[1])
	}

	return names
}

// textOf returns the concatenated contents of the files that match a pattern. It reads Go tests
// only if the pattern ends in _test.go, and then reads no other files.
func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
	if err != nil {
		t.Fatal(err)
	}

	const testSuffix = "_test.go"
	wantsTests := strings.HasSuffix(pattern, testSuffix)
	var all strings.Builder
	for _, file := range files {
		isTest := strings.HasSuffix(file, testSuffix)
		if isTest != wantsTests {
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
