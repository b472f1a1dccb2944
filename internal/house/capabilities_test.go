package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// capabilitiesPage lists what users are promised.
const capabilitiesPage = "docs/reference/capabilities.md"

// promise says how to find, in the sources, names that users are promised.
type promise struct {
	what, files string
	within      *regexp.Regexp // if set, names count within its match alone
	name        *regexp.Regexp // its first group is the name
	shown       string         // put before the name where the page has it
}

var promises = []promise{
	{
		what: "command", files: "cmd/symmem/*.go",
		name: regexp.MustCompile(`\bUse:\s+"([a-z]+)`),
	},
	{
		what: "flag", files: "cmd/symmem/*.go", shown: "--",
		name: regexp.MustCompile(`lags(?:\(\))?\.\w*VarP?\([^"]*"([a-z-]+)"`),
	},
	{
		what: "C function", files: "cmd/libsymmem/symmem.h",
		name: regexp.MustCompile(`(?m)^[a-z][\w ]* \*?((?:symmem|nccl)_\w+)\(`),
	},
	{
		what: "Python name", files: "python/src/symmem/__init__.py",
		within: regexp.MustCompile(`(?s)__all__ = \[.*?\]`),
		name:   regexp.MustCompile(`"(\w+)"`),
	},
}

// notInTable are the root command, and what symmem itself uses to start ranks, which help hides.
var notInTable = map[string]bool{"symmem": true, "pin": true, "--started": true}

func TestEveryCapabilityIsInTheTable(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", capabilitiesPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range promises {
		names := p.names(t)
		if len(names) == 0 {
			t.Errorf("no %s was found", p.what)
		}
		for _, name := range names {
			if !notInTable[name] && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("%s %s is missing from %s", p.what, name, capabilitiesPage)
			}
		}
	}
	for _, row := range shown.FindAllStringSubmatch(string(page), -1) {
		text, err := os.ReadFile(filepath.Join("..", "..", row[2]))
		if err != nil {
			t.Errorf("%s is shown by: %v", row[1], err)
		} else if !regexp.MustCompile(`\b` + row[1] + `\b`).Match(text) {
			t.Errorf("%s does not use %s", row[2], row[1])
		}
	}
}

// shown is a row of a function of C or a name of Python, and the file that shows it.
var shown = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\S+)` \\|$")

// names finds the names of one kind in the sources.
func (p promise) names(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(p.files)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if p.within != nil {
			text = p.within.Find(text)
		}
		for _, match := range p.name.FindAllSubmatch(text, -1) {
			names = append(names, p.shown+string(match[1]))
		}
	}
	return names
}
