package house

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

type pages map[string]string

// pageRule describes a rule for documents.
type pageRule struct {
	name   string
	reason string
	check  func(pages) []finding
	// bad lists small repositories, each of which violates the rule. good lists repositories that
	// comply.
	bad, good []pages
}

var pageRules = []pageRule{
	{
		name:   "links between pages are not broken",
		reason: "readers cannot follow a broken link",
		check:  brokenLinks,
		bad: []pages{
			{"a.md": "see [b](b.md)\n"},
			{"a.md": "see [b](docs/b.md#gone)\n", "docs/b.md": "# Here\n"},
			{"docs/a.md": "see [b](b.md)\n", "b.md": "\n"},
		},
		good: []pages{
			{"docs/a.md": "see [b](../b.md#what-is-it-and-why)\n", "b.md": "## What is it, and why?\n"},
			{"a.md": "see [it](https://example.com), [here](#top)\n# Top\n"},
			{"a.md": "`[code](is-none)`\n\n    [code](is-none)\n\n```\n[code](is-none)\n```\n"},
		},
	},
	{
		name:   "documents named in code exist",
		reason: "references must be updated when a page is moved",
		check:  lostMentions,
		bad:    []pages{{"a.go": "// See docs/reference/b.md.\n"}, {"a.sh": "# docs/b.md\n"}},
		good: []pages{
			{"a.go": "// See docs/b.md.\n", "docs/b.md": "\n"},
			{"python/tests/a.py": "# docs/b.md\n", "python/docs/b.md": "\n"},
		},
	},
	{
		name:   "names of code in pages exist",
		reason: "readers cannot find a name that no longer exists",
		check:  lostNames,
		bad: []pages{
			{"docs/design/a.md": "`agreeOn` compares.\n", "a.go": "func compareKeys() {}\n"},
			{"ARCHITECTURE.md": "See `Group.Agree`.\n", "a.go": "type Group struct{}\n"},
		},
		good: []pages{
			{
				"docs/design/a.md": "`Group.agree()`, `cuMemUnmap`, `-run TestOther`\n",
				"a.go":             "func (g *Group) agree() {}\n",
			},
			{"docs/guides/a.md": "`hostNetwork`\n"},
		},
	},
	{
		name:   "every page in docs is in an index",
		reason: "readers cannot find a page that no other page links to",
		check:  orphans,
		bad:    []pages{{"docs/README.md": "\n", "docs/guides/a.md": "\n"}},
		good: []pages{
			{"docs/README.md": "[a](guides/a.md)\n", "docs/guides/a.md": "\n"},
			{
				"docs/README.md": "[m](m/README.md)\n", "docs/m/README.md": "[a](a.md)\n",
				"docs/m/a.md": "\n",
			},
		},
	},
	{
		name:   "lines of prose have at most 100 columns",
		reason: "documents are also read in terminals; tables and code may be wider",
		check:  wideProse,
		bad:    []pages{{"a.md": strings.Repeat("word ", 21) + "\n"}},
		good: []pages{
			{"a.md": "| " + strings.Repeat("word ", 21) + "|\n"},
			{"a.md": "    " + strings.Repeat("word ", 21) + "\n"},
			{"a.md": "- [link](" + strings.Repeat("x", 100) + ")\n", strings.Repeat("x", 100): ""},
		},
	},
	{
		name:   "variables that code reads are in the reference",
		reason: "users cannot set undocumented variables",
		check:  unknownVariables,
		bad:    []pages{{environmentPage: "`SYMMEM_A`\n", "a.go": `os.Getenv("SYMMEM_B")`}},
		good: []pages{{
			environmentPage: "`SYMMEM_A`\n", "a.go": `os.Getenv("SYMMEM_A")`,
			"python/src/a.py": `"SYMMEM_A"`, "a_test.go": `"SYMMEM_B"`, "b.go": `"SYMMEM_TEST_B"`,
		}},
	},
	{
		name:   "pages have no private words",
		reason: "terms of NCCL, CUDA, PyTorch and Go are known; private words have to be guessed",
		check:  privateWords,
		bad: []pages{
			{"a.md": "It runs beside it.\n"},
			{"docs/a.md": "Ranks that mourn.\n"},
			{"a.md": "It tells whether\n"},
			{"a.go": "// It tells whether\n"},
			{"driver/a.go": "// a tells that b\n"},
			{"a.py": "# what a deserter does\n"},
			{"a.h": "/* waits in vain */\n"},
			{"Makefile": "lib: ## beside the package\n"},
		},
		good: []pages{{"a.md": "It runs next to it.\n"}, {"a.go": "// the house\n"}},
	},
	{
		name:   "tables start with a header",
		reason: "rows after an empty line are rendered as text with bars",
		check:  headlessTables,
		bad:    []pages{{"a.md": "| a |\n|---|\n| b |\n\n| c |\n"}, {"a.md": "| a |\n"}},
		good: []pages{
			{"a.md": "| a | b |\n|---|:--|\n| c | d |\n\nNo row.\n"}, {"a.md": "    | a |\n"},
		},
	},
	{
		name:   "README and ARCHITECTURE are short",
		reason: "they can be read in five minutes; the rest is in docs",
		check:  longPages,
		bad: []pages{
			{"README.md": strings.Repeat("word ", 701)},
			{"README.md": lines(111, "word")},
			{"ARCHITECTURE.md": lines(201, "")},
		},
		good: []pages{
			{"README.md": strings.Repeat("word ", 700)},
			{"docs/a.md": strings.Repeat("word ", 701)},
			{"README.md": lines(110, "word"), "ARCHITECTURE.md": lines(200, "word")},
		},
	},
}

// TestReadmeProgramsAreExamples compares the programs in the README with the examples that CI
// builds and runs.
func TestReadmeProgramsAreExamples(t *testing.T) {
	all := loadPages(t)
	for language, example := range map[string]string{
		"go": "examples/allreduce/main.go", "python": "examples/allreduce.py",
	} {
		_, rest, _ := strings.Cut(all["README.md"], "```"+language+"\n")
		block, _, ok := strings.Cut(rest, "```")
		if !ok || !strings.Contains(all[example], block) {
			t.Errorf("%s lacks code that README.md quotes:\n%s", example, block)
		}
	}
}

func TestPageRules(t *testing.T) {
	all := loadPages(t)
	for _, r := range pageRules {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(all) {
				t.Errorf("%v\n\treason: %s", f, r.reason)
			}
		})
	}
}

func TestPageRulesFindViolations(t *testing.T) {
	for _, r := range pageRules {
		t.Run(r.name, func(t *testing.T) {
			for i, bad := range r.bad {
				if len(r.check(bad)) == 0 {
					t.Errorf("the check finds no violation in bad example %d", i)
				}
			}

			for i, good := range r.good {
				for _, f := range r.check(good) {
					t.Errorf("the check finds a violation in good example %d: %v", i, f)
				}
			}
		})
	}
}

var (
	pageLink   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	docMention = regexp.MustCompile(`\bdocs/[\w/.-]+\.md\b`)
	heading    = regexp.MustCompile(`^#+ +(.*)`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	oneLink    = regexp.MustCompile(`^\s*([-*] +)?\[[^]]*\]\([^)]*\)[.,;:]?$`)
)

// prose calls visit for each line of a page that is not in a code block.
func prose(text string, visit func(number int, line string)) {
	// after is set if the line follows an empty line or an indented line of code.
	fenced, after := false, true
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}

		indented := after && strings.HasPrefix(line, "    ")
		after = indented || strings.TrimSpace(line) == ""
		if !fenced && !indented {
			visit(i+1, line)
		}
	}
}

// linksOf calls visit for each link on a page. target is the path of the linked file, relative to
// the root, and anchor is the text after #.
func linksOf(name, text string, visit func(line int, target, anchor string)) {
	prose(text, func(number int, line string) {
		for _, m := range pageLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			switch {
			case strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:"):
			case target == "":
				visit(number, name, anchor)
			default:
				visit(number, path.Join(path.Dir(name), target), anchor)
			}
		}
	})
}

func brokenLinks(all pages) []finding {
	var found []finding
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			continue
		}

		linksOf(name, text, func(line int, target, anchor string) {
			page, ok := all[target]
			if !ok && !all.folder(target) {
				found = append(found, finding{name, line, "no " + target})
			} else if anchor != "" && !hasHeading(page, anchor) {
				found = append(found, finding{name, line, "no heading #" + anchor + " in " + target})
			}
		})
	}

	return found
}

// folder reports whether name is a folder that contains files.
func (p pages) folder(name string) bool {
	for file := range p {
		if strings.HasPrefix(file, name+"/") {
			return true
		}
	}

	return false
}

// hasHeading reports whether a page has a heading for which GitHub generates the given anchor.
func hasHeading(text, anchor string) bool {
	has := false
	prose(text, func(_ int, line string) {
		if m := heading.FindStringSubmatch(line); m != nil {
			slug := notInSlug.ReplaceAllString(strings.ToLower(m[1]), "")
			has = has || strings.ReplaceAll(slug, " ", "-") == anchor
		}
	})
	return has
}

func lostMentions(all pages) []finding {
	var found []finding
	for name, text := range all {
		for i, line := range strings.Split(text, "\n") {
			for _, page := range docMention.FindAllString(line, -1) {
				_, ofAll := all[page]
				_, ofPython := all["python/"+page]
				// Pages and the tests in this folder may name pages that do not exist.
				other := strings.HasSuffix(name, ".md") || strings.HasPrefix(name, "internal/house/")
				if !ofAll && !ofPython && !other {
					found = append(found, finding{name, i + 1, "no " + page})
				}
			}
		}
	}

	return found
}

// orphans finds the pages in docs that cannot be reached from the index by following links.
func orphans(all pages) []finding {
	reached, next := map[string]bool{}, []string{"docs/README.md"}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if text, ok := all[name]; ok && !reached[name] {
			reached[name] = true
			linksOf(name, text, func(_ int, target, _ string) { next = append(next, target) })
		}
	}

	var found []finding
	for name := range all {
		inDocs := strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "python/docs/")
		if inDocs && strings.HasSuffix(name, ".md") && !reached[name] {
			found = append(found, finding{name, 1, "no links lead from docs/README.md to this page"})
		}
	}

	return found
}

func wideProse(all pages) []finding {
	var found []finding
	for name, text := range all {
		if !strings.HasSuffix(name, ".md") {
			continue
		}

		prose(text, func(number int, line string) {
			wide := utf8.RuneCountInString(line) > 100
			if wide && !strings.HasPrefix(strings.TrimSpace(line), "|") && !oneLink.MatchString(line) {
				found = append(found, finding{name, number, "the line is too long"})
			}
		})
	}

	return found
}

// privateInPages matches words that have a plainer synonym. In code, "house" is allowed because it
// is the name of a package.
var (
	privateWordList = []string{
		"for ever", "in vain", "football", "theatre",
		"beside", "heed", `mourn\w*`, "deserters?", "deserted", "forsaken?", "bereft",
		"tells? (that|whether|what|how|which)", "hindrance", "belated", "said right", "anybody.s guess",
	}
	privateInPages = words(append([]string{"the house"}, privateWordList...))
	privateInCode  = words(privateWordList)
)

func words(all []string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
}

func privateWords(all pages) []finding {
	var found []finding
	for name, text := range all {
		if textKinds[kind(name)] && kind(name) != ".md" {
			found = append(found, privateIn(name, text)...)
		}

		if !strings.HasSuffix(name, ".md") {
			continue
		}

		prose(text, func(number int, line string) {
			if word := privateInPages.FindString(inlineCode.ReplaceAllString(line, "")); word != "" {
				found = append(found, finding{name, number, fmt.Sprintf("%q", word)})
			}
		})
	}

	return found
}

// privateIn checks the names, texts and comments of code. It skips this package, which lists the
// words.
func privateIn(name, text string) []finding {
	if strings.HasPrefix(name, "internal/house/") || !privateInCode.MatchString(text) {
		return nil
	}

	var found []finding
	for i, line := range strings.Split(text, "\n") {
		word := privateInCode.FindString(line)
		if word != "" {
			found = append(found, finding{name, i + 1, fmt.Sprintf("%q", word)})
		}
	}

	return found
}

const environmentPage = "docs/reference/environment.md"

var (
	variable = regexp.MustCompile(`"(SYMMEM_[A-Z_]+)"`)
	// ofTests matches variables that only tests set, even if other code reads them.
	ofTests = regexp.MustCompile(`^SYMMEM_(TEST|CONTROL_TEST|CHAOS|HOST_TEST)_`)
)

func unknownVariables(all pages) []finding {
	var found []finding
	for name, text := range all {
		code := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") ||
			strings.HasPrefix(name, "python/src/") && strings.HasSuffix(name, ".py")
		if !code {
			continue
		}

		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			known := strings.Contains(all[environmentPage], "`"+m[1]+"`")
			if !known && !ofTests.MatchString(m[1]) {
				found = append(found, finding{name, 1, environmentPage + " lacks " + m[1]})
			}
		}
	}

	return found
}

func longPages(all pages) []finding {
	var found []finding
	for name, limit := range map[string]struct{ words, lines int }{
		"README.md": {700, 110}, "ARCHITECTURE.md": {1700, 200},
	} {
		if n := len(strings.Fields(all[name])); n > limit.words {
			found = append(found, finding{name, 1, fmt.Sprintf("%d words", n)})
		}

		if n := strings.Count(all[name], "\n"); n > limit.lines {
			found = append(found, finding{name, n, fmt.Sprintf("%d lines", n)})
		}
	}

	return found
}

// loadPages reads the documents and sources of the repository. The texts of other files are empty.
func loadPages(t *testing.T) pages {
	t.Helper()
	root := filepath.Join("..", "..")
	all := pages{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && skipsFolder(d.Name()):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}

		short, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}

		text := ""
		if textKinds[kind(d.Name())] || d.Name() == "MANIFEST" {
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}

			text = string(content)
		}

		all[filepath.ToSlash(short)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return all
}

// skipsFolder reports whether to skip a folder because it contains no files written by people. The
// go command also skips folders whose names begin with an underscore, but skipsFolder does not,
// because Python packages may have such names.
func skipsFolder(folder string) bool {
	return buildFolders[folder] || isIgnored(folder) && !strings.HasPrefix(folder, "_")
}

var (
	// buildFolders lists the names of folders that contain build outputs.
	buildFolders = map[string]bool{"build": true, "dist": true, "bin": true, "__pycache__": true}
	// textKinds lists the kinds of files that people write and that may name documents.
	textKinds = map[string]bool{
		".md": true, ".go": true, ".py": true, ".sh": true, ".h": true, ".c": true, ".cc": true,
		".cu": true, ".s": true, "Makefile": true,
	}
)

// kind returns the extension of a file, or its name if it has none.
func kind(name string) string {
	if e := path.Ext(name); e != "" {
		return e
	}

	return path.Base(name)
}
