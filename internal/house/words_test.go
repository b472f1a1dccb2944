package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The rules of this file concern words in names, marks of unfinished code, and calls of Sleep and
// Skip, which need an explanation.

var (
	// vagueNames lists words that do not say what a package or file contains.
	vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}
	// unfinishedMarks lists marks of unfinished code. They are split here, because this file would
	// otherwise violate the rule against them.
	unfinishedMarks = []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}
	unfinishedMark  = regexp.MustCompile(`\b(` + strings.Join(unfinishedMarks, "|") + `)\b`)
	// waitWords matches the words of which the comments on a sleep must contain one.
	waitWords = regexp.MustCompile(`(?i)(sleep|wait|pause|nap)`)
)

// formerWords maps words that names in this project once contained, and must not contain again, to
// plainer words.
var formerWords = map[string]string{
	"bell": "wakeup", "rouse": "wake", "board": "status", "tolerant": "ignore faults",
	"linger": "wait slowly", "settle": "wait for the cause, or finish", "settled": "finished",
	"desert": "leave", "desk": "gatherer, or buffers", "sheet": "case", "mate": "rank",
	"mates": "ranks", "testify": "answer", "testimony": "answer", "culprit": "the rank or call",
	"inlet": "receive pipe", "outlet": "send pipe", "parcel": "incoming message",
	"lent": "shared", "lend": "share", "keeper": "use count", "keepers": "use counts",
	"actor": "process", "fleet": "processes", "scene": "program", "knock": "connect",
	"concede": "fail and notify", "rhythm": "stall detector", "deaf": "stale",
	"stranger": "unauthenticated", "bury": "reap, or record the end", "farewell": "leave",
	"excuse": "mark absent", "astray": "elsewhere", "witness": "events, or observer",
	"survey": "rank states", "conceal": "unpublish", "spilt": "backlog", "stray": "deadlock",
}

// partsOfName matches a word of a Go name. For example, newDesk has the words "new" and "Desk".
var partsOfName = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// preamble is the first part of the examples that call time.Sleep.
const preamble = "package a\n\nimport \"time\"\n\n"

var wordRules = []rule{
	{
		name:   "packages and files have specific names",
		reason: "such names describe nothing, so anything ends up there; name a file after its subject",
		check:  eachFile(vagueNamesIn),
		bad: []map[string]string{
			{"internal/common/a.go": "package a\n"},
			{"a/types.go": "package a\n"},
			{"a/test_helpers.go": "package a\n"},
			{"a/a.go": "package utils\n"},
		},
		good: []map[string]string{{"a/datatype.go": "package a\n"}},
	},
	{
		name:   "names in Go use terms of the field",
		reason: "a reader who has never seen the project must be able to guess what a name means",
		check:  eachFile(formerWordsIn),
		bad: []map[string]string{
			{"a.go": "package a\n\ntype bell struct{}\n"},
			{"a.go": "package a\n\nfunc (b *t) Rouse() {}\n"},
			{"a.go": "package a\n\ntype t struct{ isTolerant bool }\n"},
			{"a_test.go": "package a\n\nfunc f() { newDesk := 1; _ = newDesk }\n"},
		},
		good: []map[string]string{
			{"a.go": "package a\n\ntype keyboard struct{ onboard, wakeup bool }\n"},
			{"a.go": "package a\n\nvar text = \"bell\"\n"},
		},
	},
	{
		name:   "nothing is unfinished",
		reason: "unfinished code is not merged; plans are in the documents",
		check:  eachFile(unfinishedLines),
		bad:    []map[string]string{{"a.go": "package a // TO" + "DO: write it\n"}},
		good:   []map[string]string{{"a.go": "package a // It is done.\n"}},
	},
	{
		name:   "tests never sleep, and code only with a comment",
		reason: "a sleep hides a race or wastes time; events and deadlines do not",
		check:  eachFile(badSleeps),
		bad: []map[string]string{
			{"a.go": preamble + "func f() { time.Sleep(1) }\n"},
			{"a_test.go": preamble + "// f sleeps.\nfunc f() { time.Sleep(1) }\n"},
		},
		good: []map[string]string{
			{"a.go": preamble + "// f waits for the clock to move.\nfunc f() { time.Sleep(1) }\n"},
			{"a.go": preamble + "func f() { time.Sleep(acceptPause) }\n"},
			{"a.go": preamble + "func f() {\n\t// A nap lets the peer run.\n\ttime.Sleep(1)\n}\n"},
		},
	},
	{
		name:   "skipped tests give a reason",
		reason: "a test that is silently skipped proves nothing",
		check:  eachFile(silentSkips),
		bad: []map[string]string{
			{"a_test.go": "package a\n\nfunc f(t T) { t.Skip() }\n"},
			{"a_test.go": "package a\n\nfunc f(t T) { t.SkipNow() }\n"},
			{"a_test.go": "package a\n\nfunc f(t T) { t.Skipf(\"\") }\n"},
		},
		good: []map[string]string{
			{"a_test.go": "package a\n\nfunc f(t T) { t.Skip(\"needs two GPUs\") }\n"},
		},
	},
}

// vagueNamesIn returns a finding if a folder of the file's path, the name of its package, or a word
// of the file's name is in vagueNames.
func vagueNamesIn(f *file) []finding {
	names := strings.Split(f.folder(), "/")
	names = append(names, f.syntax.Name.Name)
	names = append(names, strings.Split(strings.TrimSuffix(path.Base(f.path), ".go"), "_")...)
	for _, name := range names {
		if slices.Contains(vagueNames, name) {
			return []finding{f.find(f.syntax.Package, "%q is not specific", name)}
		}
	}

	return nil
}

// formerWordsIn returns a finding for each name that contains one of formerWords.
func formerWordsIn(f *file) []finding {
	var all []finding
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		name, isName := n.(*ast.Ident)
		if !isName {
			return true
		}

		for _, word := range partsOfName.FindAllString(name.Name, -1) {
			if plain := formerWords[strings.ToLower(word)]; plain != "" {
				all = append(all, f.find(name.Pos(), "%s: write %q", name.Name, plain))
			}
		}

		return true
	})
	return all
}

// unfinishedLines returns a finding for each line that contains one of unfinishedMarks.
func unfinishedLines(f *file) []finding {
	marked := func(mark string) bool { return strings.Contains(f.source, mark) }
	if !slices.ContainsFunc(unfinishedMarks, marked) {
		return nil // avoid the slow expression in most files
	}

	var all []finding
	for i, line := range strings.Split(f.source, "\n") {
		if found := unfinishedMark.FindString(line); found != "" {
			all = append(all, finding{f.path, i + 1, found})
		}
	}

	return all
}

// badSleeps returns a finding for each sleep in a test. Other code may sleep if one of waitWords is
// in the comments of the function, or in the name of the variable or constant for the duration.
func badSleeps(f *file) []finding {
	return callsOf(f, "time", "Sleep", func(c *ast.CallExpr, comments string) string {
		explanation := comments
		if duration, isName := c.Args[0].(*ast.Ident); isName {
			explanation += duration.Name
		}

		isExplained := waitWords.MatchString(explanation)
		if !f.isTest() && isExplained {
			return ""
		}

		return "sleeps"
	})
}

// silentSkips returns a finding for each call of Skip, Skipf or SkipNow without a reason.
func silentSkips(f *file) []finding {
	const minReason = 5 // length of a literal in the source, including the quotes
	var all []finding
	for _, name := range []string{"Skip", "Skipf", "SkipNow"} {
		all = append(all, callsOf(f, "", name, func(c *ast.CallExpr, _ string) string {
			if len(c.Args) == 0 {
				return "skips without a reason"
			}

			text, isLiteral := c.Args[0].(*ast.BasicLit)
			if isLiteral && text.Kind == token.STRING && len(text.Value) < minReason {
				return "skips without a reason"
			}

			return ""
		})...)
	}

	return all
}

// callsOf calls judge for each call of receiver.name, such as time.Sleep. If receiver is empty, it
// does so for calls of name on any receiver. comments contains the comments of the calling
// function. If judge returns a text, callsOf returns a finding with this text.
func callsOf(
	f *file, receiver, name string, judge func(c *ast.CallExpr, comments string) string,
) []finding {
	var all []finding
	comments := ""
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			comments = commentsIn(f, n) // for the calls below, which are in this function
		case *ast.CallExpr:
			if !isCallOf(n, receiver, name) {
				return true
			}

			if text := judge(n, comments); text != "" {
				all = append(all, f.find(n.Pos(), "%s", text))
			}
		}

		return true
	})
	return all
}

// isCallOf reports whether a call is one of receiver.name, or of name on any receiver if receiver
// is empty.
func isCallOf(c *ast.CallExpr, receiver, name string) bool {
	selector, isSelector := c.Fun.(*ast.SelectorExpr)
	if !isSelector || selector.Sel.Name != name {
		return false
	}

	if receiver == "" {
		return true
	}

	x, isName := selector.X.(*ast.Ident)
	return isName && x.Name == receiver
}

// commentsIn returns the text of the comments above and in a function.
func commentsIn(f *file, d *ast.FuncDecl) string {
	text := d.Doc.Text()
	for _, c := range f.syntax.Comments {
		if c.Pos() >= d.Pos() && c.End() <= d.End() {
			text += c.Text()
		}
	}

	return text
}
