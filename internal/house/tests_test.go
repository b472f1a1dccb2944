package house

import (
	"path"
	"slices"
	"strings"
)

// kinds lists names of test files that state the kind of the tests, or that have a special meaning.
var kinds = []string{
	"bench", "contract", "example", "export", "fuzz", "main", "model", "norace", "race", "transcript",
}

// suites lists names of test files that test more than one source file or are shared by other
// tests.
var suites = map[string][]string{
	"":                  {"program", "rank"},    // random programs; ranks that tests start
	"driver/drivertest": {"small"},              // the smallest possible backend, which is an example
	"driver/host":       {"process", "program"}, // ranks as processes, and what they do
	"driver/nccl":       {"direct", "message"},
}

var testRules = []rule{
	{
		name:   "tests are named after what they test",
		reason: "developers find the tests of a file next to it, under its name",
		check:  misnamedTests,
		bad: []map[string]string{
			{"a.go": "package a\n", "b_test.go": "package a\n"},
			{"driver/p/a.go": "package p\n", "driver/p/ab_test.go": "package p\n", "ab.go": "package a\n"},
			{"internal/p/ab.go": "package p\n", "internal/p/a_test.go": "package p\n"},
		},
		good: []map[string]string{
			{"a.go": "package a\n", "a_test.go": "package a\n", "a_more_test.go": "package a\n"},
			{"driver/p/a.go": "package p\n", "driver/p/p_test.go": "package p\n"},
			{"driver/p/a.go": "package p\n", "driver/p/main_test.go": "package p\n"},
			{"internal/p/a_amd64.go": "package p\n", "internal/p/a_test.go": "package p\n"},
			{"cmd/p/doc.go": "package p\n", "cmd/p/any_test.go": "package p\n"},
		},
	},
}

func misnamedTests(files []*file) []finding {
	sources := map[string][]string{} // names of the source files in each folder
	for _, f := range files {
		if name := strings.TrimSuffix(path.Base(f.path), ".go"); !f.isTest() && name != "doc" {
			sources[f.folder()] = append(sources[f.folder()], name)
		}
	}

	var all []finding
	for _, f := range files {
		folder := f.folder()
		if !f.isTest() || len(sources[folder]) == 0 {
			continue
		}

		name := strings.TrimSuffix(path.Base(f.path), "_test.go")
		startsWith := func(s string) bool { return name == s || strings.HasPrefix(name, s+"_") }
		extends := func(source string) bool { return strings.HasPrefix(source, name+"_") }
		if !slices.ContainsFunc(slices.Concat(sources[folder], kinds, suites[folder]), startsWith) &&
			!slices.ContainsFunc(sources[folder], extends) && !startsWith(path.Base(folder)) {
			all = append(all, f.find(f.syntax.Package, "no source file has the name of this test"))
		}
	}

	return all
}
