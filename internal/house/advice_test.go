package house

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// advice describes how messages refer to names of one kind, such as flags or functions.
type advice struct {
	kind string
	// reference matches a reference in a message. Its last group is the name.
	reference *regexp.Regexp
	// exists returns the names that exist. others lists names from other programs, and ordinary
	// words that reference also matches.
	exists func(*testing.T, []*file) []string
	others []string
}

var advices = []advice{
	{
		kind:      "command",
		reference: regexp.MustCompile(`\bsymmem ([a-z][a-z-]+)`),
		exists:    func(_ *testing.T, files []*file) []string { return commandsOf(files) },
		// Words that follow the name symmem in sentences.
		others: []string{
			"against", "completion", "deregisters", "does", "finds", "has", "inserts", "instead", "is",
			"keeps", "makes", "never", "puts", "run", "sends", "sets", "starts", "takes", "uses",
		},
	},
	{
		kind:      "flag",
		reference: regexp.MustCompile(`(?:^|[^\w-])--([a-z][a-z-]+)`),
		exists:    func(_ *testing.T, files []*file) []string { return flagsOf(files) },
		// Flags of cobra, torchrun, nvidia-smi and docker.
		others: []string{
			"help", "network", "no-python", "nproc-per-node", "pid", "status", "ulimit",
		},
	},
	{
		kind:      "variable",
		reference: regexp.MustCompile(`\b(SYMMEM_[A-Z_]+)\b`),
		exists: func(t *testing.T, _ []*file) []string {
			return regexp.MustCompile(`SYMMEM_[A-Z_]+`).FindAllString(read(t, environmentPage), -1)
		},
	},
	{
		kind:      "C function",
		reference: regexp.MustCompile(`\b(symmem_\w+)\b`),
		exists: func(t *testing.T, _ []*file) []string {
			return regexp.MustCompile(`symmem_\w+`).FindAllString(
				read(t, "cmd/libsymmem/symmem.h"), -1)
		},
	},
	{
		kind:      "Go name",
		reference: regexp.MustCompile(`\b([A-Z][a-z]\w*\.[A-Z]\w*|symmem\.[A-Z]\w*)\b`),
		exists:    func(_ *testing.T, files []*file) []string { return exportsOf(files) },
	},
	{
		kind:      "Go name without its type",
		reference: regexp.MustCompile(`\b(?:see|call|use) ([A-Z][a-z]\w*)\b`),
		exists: func(_ *testing.T, files []*file) []string {
			var names []string
			for _, name := range exportsOf(files) {
				names = append(names, name[strings.IndexByte(name, '.')+1:])
			}

			return names
		},
		others: []string{"Linux"},
	},
	{
		kind:      "Python name",
		reference: regexp.MustCompile(`\bsymmem\.([a-z]\w*)\b`),
		exists: func(t *testing.T, _ []*file) []string {
			_, list, _ := strings.Cut(read(t, "python/src/symmem/__init__.py"), "__all__ = [")
			list, _, _ = strings.Cut(list, "]")
			var names []string
			for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(list, -1) {
				names = append(names, m[1])
			}

			return names
		},
	},
	{
		kind:      "argument of symmem.init in Python",
		reference: regexp.MustCompile(`\bsymmem\.init\((\w+)=`),
		exists: func(t *testing.T, _ []*file) []string {
			_, list, _ := strings.Cut(read(t, "python/src/symmem/_api/opening.py"), "\ndef init(")
			list, _, _ = strings.Cut(list, ")")
			var names []string
			for _, m := range regexp.MustCompile(`\n    (\w+):`).FindAllStringSubmatch(list, -1) {
				names = append(names, m[1])
			}

			return names
		},
	},
}

// TestAdviceInMessagesExists checks all string literals in Go code that consist of several words,
// such as errors, reports and help. A Python test (test_advice.py) does the same for Python.
func TestAdviceInMessagesExists(t *testing.T) {
	files := loadFiles(t)
	texts := literals(files)
	for _, a := range advices {
		t.Run(a.kind, func(t *testing.T) {
			known := append(a.exists(t, files), a.others...)
			seen := 0
			for _, l := range texts {
				for _, m := range a.reference.FindAllStringSubmatch(l.text, -1) {
					seen++
					if name := m[len(m)-1]; !slices.Contains(known, name) {
						t.Errorf("%s:%d: the %s %s does not exist", l.path, l.line, a.kind, name)
					}
				}
			}

			if seen == 0 {
				t.Errorf("no message refers to a %s", a.kind)
			}
		})
	}
}

// literals returns a finding for each string literal outside of tests that has several words.
func literals(files []*file) []finding {
	var all []finding
	for _, f := range files {
		if f.isTest() || strings.HasPrefix(f.path, "examples/") || strings.HasPrefix(f.path, "bench/") {
			continue
		}

		ast.Inspect(f.syntax, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}

			if text, err := strconv.Unquote(l.Value); err == nil && strings.Contains(text, " ") {
				all = append(all, f.find(l.Pos(), "%s", text))
			}

			return true
		})
	}

	return all
}

// commandsOf returns the names of all commands. A command's name is the first word of its Use
// field.
func commandsOf(files []*file) []string {
	use := regexp.MustCompile(`\bUse: +"(\w+)`)
	var names []string
	for _, f := range files {
		if f.folder() != "cmd/symmem" || f.isTest() {
			continue
		}

		for _, m := range use.FindAllStringSubmatch(f.source, -1) {
			names = append(names, m[1])
		}
	}

	return names
}

var (
	definesFlag = regexp.MustCompile(`VarP?$|^(Bool|String|Int|Duration)P?$`)
	flagName    = regexp.MustCompile(`^"[a-z][a-z-]+"$`)
)

func flagsOf(files []*file) []string {
	var names []string
	for _, f := range files {
		if f.folder() != "cmd/symmem" || f.isTest() {
			continue
		}

		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}

			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !definesFlag.MatchString(method.Sel.Name) {
				return true
			}

			for _, argument := range call.Args {
				if l, ok := argument.(*ast.BasicLit); ok && flagName.MatchString(l.Value) {
					names = append(names, strings.Trim(l.Value, `"`))
				}
			}

			return true
		})
	}

	return names
}

// exportsOf returns the exported names of the root package and of package driver, in the forms
// "symmem.Function", "Type.Method" and "Type.Field".
func exportsOf(files []*file) []string {
	var names []string
	for _, f := range files {
		if f.folder() != "" && f.folder() != "driver" || f.isTest() {
			continue
		}

		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names = append(names, "symmem."+d.Name.Name)
				} else {
					names = append(names, strings.Trim(f.cut(d.Recv.List[0].Type), "*")+"."+d.Name.Name)
				}
			case *ast.GenDecl:
				names = append(names, specsOf(d)...)
			}
		}
	}

	return names
}

func specsOf(d *ast.GenDecl) (names []string) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				names = append(names, "symmem."+name.Name)
			}
		case *ast.TypeSpec:
			names = append(names, "symmem."+spec.Name.Name)
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}

			for _, field := range body.Fields.List {
				for _, name := range field.Names {
					names = append(names, spec.Name.Name+"."+name.Name)
				}
			}
		}
	}

	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// TestUnknownAdviceIsFound checks, for each kind of name, that the check finds a nonexistent name
// in a message.
func TestUnknownAdviceIsFound(t *testing.T) {
	files := loadFiles(t)
	for kind, message := range map[string]string{
		"command": "run symmem diagnose", "flag": "use --no-such", "variable": "set SYMMEM_NONE",
		"C function": "call symmem_none", "Go name": "see Options.None",
		"Go name without its type":          "see Nothing",
		"Python name":                       "call symmem.none",
		"argument of symmem.init in Python": "raise symmem.init(timeout_ms=5)",
	} {
		a := advices[slices.IndexFunc(advices, func(a advice) bool { return a.kind == kind })]
		m := a.reference.FindStringSubmatch(message)
		if m == nil || slices.Contains(append(a.exists(t, files), a.others...), m[len(m)-1]) {
			t.Errorf("%s: the unknown name in %q is not found", kind, message)
		}
	}
}
