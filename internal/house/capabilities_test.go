package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// capability is a kind of feature that users call by name, such as command-line flags. Each name
// must occur in a test or script. Paths are relative to the module's root.
type capability struct {
	kind         string
	declarations string         // glob pattern of the declaring files
	section      *regexp.Regexp // limits the search for declarations, if not nil
	name         *regexp.Regexp // matches a declaration; group 1 is the name
	prefix       string         // precedes the name in tests
	tests        []string       // glob patterns of tests and scripts
}

var capabilities = []capability{
	{
		kind: "command", declarations: "cmd/symmem/*.go",
		name:  regexp.MustCompile(`\bUse:\s+"([a-z]+)`),
		tests: []string{"cmd/symmem/*_test.go", "cmd/symmem/testdata/*/*", "bench/gpu/*.sh"},
	},
	{
		kind: "flag", declarations: "cmd/symmem/*.go", prefix: "--",
		// Matches flags.BoolVar(&f.json, "json" or Flags().IntVarP(&n, "count".
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

var exemptNames = map[string]bool{
	"symmem": true, // root command
	// Names for internal use:
	"pin": true, "started": true,
	// Flags whose effect is tested without the command:
	"in-place": true, "min-bytes": true, "nccl": true, "prove": true, "redop": true,
	"round-timeout": true,
}

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
			if !exemptNames[name] && !use.MatchString(tests.String()) {
				t.Errorf("no test in %v uses the %s %s%s", c.tests, c.kind, c.prefix, name)
			}
		}
	}
}

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

// textOf concatenates the files that match a glob pattern. A pattern such as *.go does not match Go
// tests, whereas *_test.go does.
func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
	if err != nil {
		t.Fatal(err)
	}

	const testSuffix = "_test.go"
	includesTests := strings.HasSuffix(pattern, testSuffix)
	var all strings.Builder
	for _, file := range files {
		isTest := strings.HasSuffix(file, testSuffix)
		if isTest && !includesTests {
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
