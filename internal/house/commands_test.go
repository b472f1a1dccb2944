package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Pages (Markdown files) contain go test commands, such as
//
//	go test ./driver -run 'TestA|TestB/small'
//
// The tests check that each command still runs something. The arguments of this command are
// " ./driver -run 'TestA|TestB/small'". They name the folder ./driver and the pattern
// TestA|TestB/small. The pattern has two alternatives, TestA and TestB/small, where "small" is a
// subtest. Each alternative must match a function in the test files of the folder.
//
// A command is a line of a code block, or it is in backquotes, where it may continue on the next
// line. In a table, the page has \| for each vertical bar of a pattern.
var (
	// wrappedCommand matches a go test command in backquotes.
	wrappedCommand = regexp.MustCompile("`[^`\n]*\\bgo\\s+test\\s[^`]*`")
	// goTest matches a go test command on one line. Its group is the arguments.
	goTest = regexp.MustCompile("go test( [^`\n]*)")
	// patternFlag matches a flag and its pattern, which may be quoted. Its second group is the
	// pattern.
	patternFlag = regexp.MustCompile(`-(run|bench|fuzz)[ =]('[^']*'|"[^"]*"|[^ ]+)`)
	// folderArgument matches ".", a folder such as ./driver, or all folders below one, as in
	// ./driver/... . Its second group is the argument without spaces.
	folderArgument = regexp.MustCompile(`(^| )(\./[\w./-]*|\.)( |$)`)
)

// TestCommandsOnPagesMatchTests checks the commands on all pages of the module.
func TestCommandsOnPagesMatchTests(t *testing.T) {
	const minCommands = 20 // If there are fewer, testCommands probably overlooks some.
	functions := functionsOfTests(loadFiles(t))
	commandCount := 0
	for page, text := range loadPages(t) {
		isMarkdown := strings.HasSuffix(page, ".md")
		if !isMarkdown {
			continue
		}

		for _, arguments := range testCommands(text) {
			commandCount++
			for _, unmatched := range unmatchedPatterns(arguments, functions) {
				t.Errorf("%s: go test%s: no test in these packages matches %s", page, arguments, unmatched)
			}
		}
	}

	if commandCount < minCommands {
		t.Errorf("found only %d commands, want %d or more", commandCount, minCommands)
	}
}

// testCommands returns the arguments of each go test command in the text of a page.
func testCommands(text string) []string {
	text = wrappedCommand.ReplaceAllStringFunc(text, joinLines)
	text = strings.ReplaceAll(text, `\|`, "|")
	var all []string
	for _, match := range goTest.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}

	return all
}

// joinLines replaces each line break, and the spaces around it, by one space.
func joinLines(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestCommandsAreFound checks the arguments that testCommands returns for examples of pages.
func TestCommandsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want []string
	}{
		"in backquotes": {
			page: "Run `go test . -run TestA`.",
			want: []string{" . -run TestA"},
		},
		"on two lines": {
			page: "Run `go test . -run\n  'TestA|TestB'`.",
			want: []string{" . -run 'TestA|TestB'"},
		},
		"on three lines, after a variable": {
			page: "Run `A=1 go\ntest\n. -run TestA`.",
			want: []string{" . -run TestA"},
		},
		"in a code block": {
			page: "    go test .    # all\n\n`other\ncode`",
			want: []string{" .    # all"},
		},
		"two commands": {
			page: "`a`, `go test .`, `go test\n./b`",
			want: []string{" .", " ./b"},
		},
		"in a table": {
			page: "| `go test . -run 'A\\|B'` |",
			want: []string{" . -run 'A|B'"},
		},
	} {
		if got := testCommands(c.page); !slices.Equal(got, c.want) {
			t.Errorf("%s: testCommands(%q) = %q, want %q", name, c.page, got, c.want)
		}
	}
}

// functionsOfTests returns the functions, but not the methods, in the test files of each folder. A
// key is a folder as in a command: "." or, for example, "./driver".
func functionsOfTests(files []*file) map[string][]string {
	functions := map[string][]string{}
	for _, f := range files {
		if !f.isTest() {
			continue
		}

		folder := "."
		if f.folder() != "" {
			folder = "./" + f.folder()
		}

		for _, d := range f.syntax.Decls {
			function, isFunction := d.(*ast.FuncDecl)
			if isFunction && function.Recv == nil {
				functions[folder] = append(functions[folder], function.Name.Name)
			}
		}
	}

	return functions
}

// unmatchedPatterns returns the alternatives in a command's patterns that match no function of the
// command's folders. allFunctions is a result of functionsOfTests.
func unmatchedPatterns(arguments string, allFunctions map[string][]string) []string {
	functions := functionsOfCommand(arguments, allFunctions)
	var unmatched []string
	for _, match := range patternFlag.FindAllStringSubmatch(arguments, -1) {
		pattern := strings.Trim(match[2], `'"`)
		for _, alternative := range alternatives(pattern) {
			// "^$" matches no test on purpose, and "." matches all tests.
			isSpecial := alternative == "^$" || alternative == "."
			if !isSpecial && !matchesAny(alternative, functions) {
				unmatched = append(unmatched, alternative)
			}
		}
	}

	return unmatched
}

// functionsOfCommand returns the functions of the folders that a command's arguments name.
func functionsOfCommand(arguments string, allFunctions map[string][]string) []string {
	withoutPatterns := patternFlag.ReplaceAllString(arguments, " ")
	// folderArgument matches the spaces on both sides, so two arguments need two spaces between them.
	separated := strings.ReplaceAll(withoutPatterns, " ", "  ")
	var functions []string
	for _, match := range folderArgument.FindAllStringSubmatch(separated, -1) {
		for folder, list := range allFunctions {
			if isFolderIn(folder, match[2]) {
				functions = append(functions, list...)
			}
		}
	}

	return functions
}

// isFolderIn reports whether a command with this argument tests the folder. For example, the
// argument ./a/... means ./a/b, too.
func isFolderIn(folder, argument string) bool {
	root, hasDots := strings.CutSuffix(argument, "/...")
	if !hasDots {
		return folder == argument
	}

	return root == "." || strings.HasPrefix(folder, root)
}

// matchesAny reports whether an alternative matches a function. It ignores subtests: the part of
// the alternative from the first slash on.
func matchesAny(alternative string, functions []string) bool {
	test, _, _ := strings.Cut(alternative, "/")
	expression, err := regexp.Compile(test)
	if err != nil {
		return false
	}

	return slices.ContainsFunc(functions, expression.MatchString)
}

// alternatives splits a pattern at the vertical bars outside of parentheses. For example, it splits
// A(b|c)|D into A(b|c) and D.
func alternatives(pattern string) []string {
	var all []string
	depth := 0 // number of open parentheses
	start := 0 // of the current alternative
	for i, c := range pattern {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all = append(all, pattern[start:i])
			start = i + 1
		}
	}

	return append(all, pattern[start:])
}

// TestUnmatchedPatternsAreFound calls unmatchedPatterns for two folders with a few tests.
func TestUnmatchedPatternsAreFound(t *testing.T) {
	functions := map[string][]string{
		".":   {"TestA"},
		"./b": {"TestB", "FuzzB"},
	}
	for arguments, wantCount := range map[string]int{
		" . -run TestA":              0,
		" ./b -run 'TestB/c|FuzzB'":  0,
		" . -run 'TestA|TestB'":      1, // TestB is in the other folder.
		" ./b -run TestC":            1,
		" ./b . -run 'TestB/(a|b)'":  0,
		" ./b -run '^$' -fuzz FuzzB": 0,
		" ./... -run TestB":          0,
	} {
		unmatched := unmatchedPatterns(arguments, functions)
		if len(unmatched) != wantCount {
			t.Errorf("go test%s: %q match no test, want %d patterns", arguments, unmatched, wantCount)
		}
	}
}
