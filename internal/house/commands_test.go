package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A go test command on a page is either an inline code span, which may be wrapped, or a line of a
// code block. The argument of -run, -bench or -fuzz is a word or a quoted string. In tables,
// vertical bars in the argument are escaped.
var (
	goTest          = regexp.MustCompile("go test( [^`\n]*)")
	wrappedCommand  = regexp.MustCompile("`[^`\n]*\\bgo\\s+test\\s[^`]*`")
	patternFlag     = regexp.MustCompile(`-(run|bench|fuzz)[ =]('[^']*'|"[^"]*"|[^ ]+)`)
	packageArgument = regexp.MustCompile(`(^| )(\./[\w./-]*|\.)( |$)`)
)

func TestCommandsOnPagesMatchTests(t *testing.T) {
	names := functionsOfTests(loadFiles(t))
	commands := 0
	for page, text := range loadPages(t) {
		if !strings.HasSuffix(page, ".md") {
			continue
		}

		for _, arguments := range testCommands(text) {
			commands++
			for _, unmatched := range unmatchedPatterns(arguments, names) {
				t.Errorf("%s: go test%s: no test in these packages matches %s", page, arguments, unmatched)
			}
		}
	}

	if commands < 20 {
		t.Errorf("found only %d commands, want 20 or more", commands)
	}
}

func TestCommandsAreFound(t *testing.T) {
	for text, want := range map[string][]string{
		"Run `go test . -run TestA`.":             {" . -run TestA"},
		"Run `go test . -run\n  'TestA|TestB'`.":  {" . -run 'TestA|TestB'"},
		"Run `A=1 go\ntest\n. -run TestA`.":       {" . -run TestA"},
		"    go test .    # all\n\n`other\ncode`": {" .    # all"},
		"`a`, `go test .`, `go test\n./b`":        {" .", " ./b"},
		"| `go test . -run 'A\\|B'` |":            {" . -run 'A|B'"},
	} {
		if found := testCommands(text); !slices.Equal(found, want) {
			t.Errorf("testCommands(%q) = %q, want %q", text, found, want)
		}
	}
}

func TestUnmatchedPatternsAreFound(t *testing.T) {
	names := map[string][]string{".": {"TestA"}, "./b": {"TestB", "FuzzB"}}
	for command, want := range map[string]int{
		" . -run TestA": 0, " ./b -run 'TestB/c|FuzzB'": 0, " . -run 'TestA|TestB'": 1,
		" ./b -run TestC": 1, " ./b . -run 'TestB/(a|b)'": 0, " ./b -run '^$' -fuzz FuzzB": 0,
		" ./... -run TestB": 0,
	} {
		if unmatched := unmatchedPatterns(command, names); len(unmatched) != want {
			t.Errorf("go test%s: %q match no test, want %d patterns", command, unmatched, want)
		}
	}
}

func testCommands(text string) (all []string) {
	text = wrappedCommand.ReplaceAllStringFunc(text, func(span string) string {
		return strings.Join(strings.Fields(span), " ")
	})
	text = strings.ReplaceAll(text, `\|`, "|")
	for _, m := range goTest.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}

	return all
}

// functionsOfTests returns the functions in the test files of each folder, such as "./driver".
func functionsOfTests(files []*file) map[string][]string {
	names := map[string][]string{}
	for _, f := range files {
		if !f.isTest() {
			continue
		}

		folder := "."
		if f.folder() != "" {
			folder = "./" + f.folder()
		}

		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Recv == nil {
				names[folder] = append(names[folder], function.Name.Name)
			}
		}
	}

	return names
}

// unmatchedPatterns returns the patterns of a command that match no function in its packages.
func unmatchedPatterns(command string, names map[string][]string) []string {
	rest := patternFlag.ReplaceAllString(command, " ")
	var functions []string
	for _, m := range packageArgument.FindAllStringSubmatch(strings.ReplaceAll(rest, " ", "  "), -1) {
		below, all := strings.CutSuffix(m[2], "/...")
		for folder, list := range names {
			if folder == m[2] || all && (below == "." || strings.HasPrefix(folder, below)) {
				functions = append(functions, list...)
			}
		}
	}

	var unmatched []string
	for _, m := range patternFlag.FindAllStringSubmatch(command, -1) {
		for _, alternative := range alternatives(strings.Trim(m[2], `'"`)) {
			test, _, _ := strings.Cut(alternative, "/")
			expression, err := regexp.Compile(test)
			found := alternative == "^$" || alternative == "."
			for _, name := range functions {
				found = found || err == nil && expression.MatchString(name)
			}

			if !found {
				unmatched = append(unmatched, alternative)
			}
		}
	}

	return unmatched
}

// alternatives splits a pattern at the vertical bars outside of parentheses.
func alternatives(pattern string) []string {
	var all []string
	depth, start := 0, 0
	for i, c := range pattern {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				all = append(all, pattern[start:i])
				start = i + 1
			}
		}
	}

	return append(all, pattern[start:])
}
