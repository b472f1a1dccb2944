package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}
	// These marks are split so that this file complies with the rule against them.
	unfinishedMarks = []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}
	unfinishedMark  = regexp.MustCompile(`\b(` + strings.Join(unfinishedMarks, "|") + `)\b`)
	waitWords       = regexp.MustCompile(`(?i)(sleep|wait|pause|nap)`)
)

// plainWords maps words that names must not contain to plain alternatives.
var plainWords = map[string]string{
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

// partsOfName matches "new" and "Desk" in newDesk.
var partsOfName = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

const importsTime = "package a\n\nimport \"time\"\n\n"

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
			{"a.go": importsTime + "func f() { time.Sleep(1) }\n"},
			{"a_test.go": importsTime + "// f sleeps.\nfunc f() { time.Sleep(1) }\n"},
		},
		good: []map[string]string{
			{"a.go": importsTime + "// f waits for the clock to move.\nfunc f() { time.Sleep(1) }\n"},
			{"a.go": importsTime + "func f() { time.Sleep(acceptPause) }\n"},
			{"a.go": importsTime + "func f() {\n\t// A nap lets the peer run.\n\ttime.Sleep(1)\n}\n"},
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

// vagueNamesIn checks the names of the folders and of the package, and the words of the file name.
func vagueNamesIn(f *file) []finding {
	names := strings.Split(f.folder(), "/")
	names = append(names, f.syntax.Name.Name)
	fileName := strings.TrimSuffix(path.Base(f.path), ".go")
	names = append(names, strings.Split(fileName, "_")...)
	for _, name := range names {
		if slices.Contains(vagueNames, name) {
			return []finding{f.find(f.syntax.Package, "%q is not specific", name)}
		}
	}

	return nil
}

func formerWordsIn(f *file) []finding {
	var all []finding
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		name, isName := n.(*ast.Ident)
		if !isName {
			return true
		}

		for _, word := range partsOfName.FindAllString(name.Name, -1) {
			if plain := plainWords[strings.ToLower(word)]; plain != "" {
				all = append(all, f.find(name.Pos(), "%s: write %q", name.Name, plain))
			}
		}

		return true
	})
	return all
}

func unfinishedLines(f *file) []finding {
	mayContain := func(mark string) bool { return strings.Contains(f.source, mark) }
	if !slices.ContainsFunc(unfinishedMarks, mayContain) {
		return nil // avoids the slow expression below for most files
	}

	var all []finding
	for i, line := range strings.Split(f.source, "\n") {
		if found := unfinishedMark.FindString(line); found != "" {
			all = append(all, finding{f.path, i + 1, found})
		}
	}

	return all
}

// badSleeps reports all sleeps in tests. Other code may sleep if a comment of the function or the
// name of the duration matches waitWords.
func badSleeps(f *file) []finding {
	return callsOf(f, "time", "Sleep", func(c *ast.CallExpr, comments string) string {
		explanation := comments
		if duration, isName := c.Args[0].(*ast.Ident); isName {
			explanation += duration.Name
		}

		isPermitted := !f.isTest() && waitWords.MatchString(explanation)
		if isPermitted {
			return ""
		}

		return "sleeps"
	})
}

func silentSkips(f *file) []finding {
	const minReason = len(`"GPU"`) // including the quotes
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

// callsOf passes each call of receiver.name, and the comments of the calling function, to judge. It
// returns a finding for each text that judge returns, except "". The receiver "" stands for all
// receivers.
func callsOf(
	f *file, receiver, name string, judge func(c *ast.CallExpr, comments string) string,
) []finding {
	var all []finding
	comments := ""
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			comments = commentsIn(f, n) // Inspect visits the calls in this function next.
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

// commentsIn returns the text of the function's doc comment and of the comments in the body.
func commentsIn(f *file, d *ast.FuncDecl) string {
	text := d.Doc.Text()
	for _, c := range f.syntax.Comments {
		if c.Pos() >= d.Pos() && c.End() <= d.End() {
			text += c.Text()
		}
	}

	return text
}
