package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Markdown pages contain commands such as
//
//	go test ./driver -run 'TestA|TestB/small'
//
// Each alternative of the pattern, TestA and TestB/small, must match a test in ./driver.
var (
	// wrappedCommand matches a command in backquotes, even if it spans several lines.
	wrappedCommand = regexp.MustCompile("`[^`\n]*\\bgo\\s+test\\s[^`]*`")
	// goTest matches a command on one line. Group 1 contains the arguments.
	goTest = regexp.MustCompile("go test( [^`\n]*)")
	// patternFlag matches a flag and a pattern, which is group 2.
	patternFlag = regexp.MustCompile(`-(run|bench|fuzz)[ =]('[^']*'|"[^"]*"|[^ ]+)`)
	// folderArgument matches ".", "./driver" or "./driver/...". Group 2 is the folder.
	folderArgument = regexp.MustCompile(`(^| )(\./[\w./-]*|\.)( |$)`)
)

func TestCommandsOnPagesMatchTests(t *testing.T) {
	const minCommands = 20 // far fewer than the pages have
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

// testCommands returns the arguments of each go test command on a page.
func testCommands(text string) []string {
	text = wrappedCommand.ReplaceAllStringFunc(text, joinLines)
	text = strings.ReplaceAll(text, `\|`, "|") // Markdown tables escape "|".
	var all []string
	for _, match := range goTest.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}

	return all
}

func joinLines(text string) string { return strings.Join(strings.Fields(text), " ") }

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

// functionsOfTests returns the functions in test files by folder, such as "." or "./driver".
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

// unmatchedPatterns returns the alternatives that match no test in the folders of the command.
func unmatchedPatterns(arguments string, allFunctions map[string][]string) []string {
	functions := functionsOfCommand(arguments, allFunctions)
	var unmatched []string
	for _, match := range patternFlag.FindAllStringSubmatch(arguments, -1) {
		pattern := strings.Trim(match[2], `'"`)
		for _, alternative := range alternatives(pattern) {
			excludesAll := alternative == "^$" // as in go test -run '^$' -bench .
			if !excludesAll && !matchesAny(alternative, functions) {
				unmatched = append(unmatched, alternative)
			}
		}
	}

	return unmatched
}

func functionsOfCommand(arguments string, allFunctions map[string][]string) []string {
	withoutPatterns := patternFlag.ReplaceAllString(arguments, " ")
	// Adjacent matches of folderArgument cannot share a space, so each needs two.
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

// isFolderIn reports whether an argument such as "./driver" or "./..." selects a folder.
func isFolderIn(folder, argument string) bool {
	root, isRecursive := strings.CutSuffix(argument, "/...")
	if !isRecursive {
		return folder == argument
	}

	return root == "." || strings.HasPrefix(folder, root)
}

// matchesAny reports whether an alternative matches a function. It ignores names of subtests.
func matchesAny(alternative string, functions []string) bool {
	test, _, _ := strings.Cut(alternative, "/") // A slash precedes the name of a subtest.
	expression, err := regexp.Compile(test)
	if err != nil {
		return false
	}

	return slices.ContainsFunc(functions, expression.MatchString)
}

// alternatives splits A(b|c)|D into A(b|c) and D.
func alternatives(pattern string) []string {
	var all []string
	depth := 0 // of parentheses
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

func TestUnmatchedPatternsAreFound(t *testing.T) {
	functions := map[string][]string{
		".":   {"TestA"},
		"./b": {"TestB", "FuzzB"},
	}
	for arguments, wantCount := range map[string]int{
		" . -run TestA":              0,
		" ./b -run 'TestB/c|FuzzB'":  0,
		" . -run 'TestA|TestB'":      1,
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
