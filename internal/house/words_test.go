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
	// unfinishedMarks lists marks of unfinished code. They are split here, because this file would
	// otherwise violate the rule against them.
	unfinishedMarks = []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}
	unfinishedMark  = regexp.MustCompile(`\b(` + strings.Join(unfinishedMarks, "|") + `)\b`)
	// waitWords matches the words of which a comment on a sleep must contain one.
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

// partsOfName matches the words of a Go name.
var partsOfName = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// preamble begins the examples that call package time.
const preamble = "package a\n\nimport \"time\"\n\n"

var wordRules = []rule{
	{
		name:   "packages and files have specific names",
		reason: "such names describe nothing, so anything ends up there; name a file after its subject",
		check: eachFile(func(f *file) []finding {
			names := strings.Split(f.folder(), "/")
			names = append(names, f.syntax.Name.Name)
			names = append(names, strings.Split(strings.TrimSuffix(path.Base(f.path), ".go"), "_")...)
			for _, name := range names {
				if slices.Contains(vagueNames, name) {
					return []finding{f.find(f.syntax.Package, "%q is not specific", name)}
				}
			}

			return nil
		}),
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
		check: eachFile(func(f *file) []finding {
			var all []finding
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				name, ok := n.(*ast.Ident)
				if !ok {
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
		}),
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
		check: eachFile(func(f *file) []finding {
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
		}),
		bad:  []map[string]string{{"a.go": "package a // TO" + "DO: write it\n"}},
		good: []map[string]string{{"a.go": "package a // It is done.\n"}},
	},
	{
		name:   "tests never sleep, and code only with a comment",
		reason: "a sleep hides a race or wastes time; events and deadlines do not",
		check: eachFile(func(f *file) []finding {
			return callsOf(f, "time", "Sleep", func(c *ast.CallExpr, comments string) string {
				if name, ok := c.Args[0].(*ast.Ident); ok {
					comments += name.Name
				}

				if !f.isTest() && waitWords.MatchString(comments) {
					return ""
				}

				return "sleeps"
			})
		}),
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

// silentSkips finds calls of Skip, Skipf and SkipNow without a reason.
func silentSkips(f *file) []finding {
	var all []finding
	for _, name := range []string{"Skip", "Skipf", "SkipNow"} {
		all = append(all, callsOf(f, "", name, func(c *ast.CallExpr, _ string) string {
			if len(c.Args) == 0 {
				return "skips without a reason"
			}

			text, ok := c.Args[0].(*ast.BasicLit)
			if ok && text.Kind == token.STRING && len(text.Value) < 5 {
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
			comments = commentsIn(f, n)
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != name {
				return true
			}

			if x, ok := s.X.(*ast.Ident); receiver != "" && (!ok || x.Name != receiver) {
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
