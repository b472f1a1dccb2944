//go:build cgo

package main_test

import (
	"debug/elf"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// open reads the library's ELF tables.
func open(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(build(t).library)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// comments matches comments in C.
var comments = regexp.MustCompile(`(?s)/\*.*?\*/`)

// declared lists the functions of the header.
func declared(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("symmem.h")
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`\b((?:symmem|nccl)_\w+)\(`)
	var names []string
	for _, m := range calls.FindAllStringSubmatch(comments.ReplaceAllString(string(text), ""), -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names
}

func TestLibraryExportsDeclaredFunctions(t *testing.T) {
	symbols, err := open(t).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			shown = append(shown, s.Name)
		}
	}
	slices.Sort(shown)
	want := declared(t)
	if len(want) < 60 {
		t.Fatalf("only %d functions found in the header", len(want))
	}
	if !slices.Equal(shown, want) {
		t.Errorf("the library exports\n%v\nand the header declares\n%v", shown, want)
	}
}

// TestForkedChildCallsDeclaredFunctions fails if testdata/forked.c does not call a function of the
// header.
func TestForkedChildCallsDeclaredFunctions(t *testing.T) {
	text, err := os.ReadFile("testdata/forked.c")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\w+`).FindAllString(comments.ReplaceAllString(string(text), ""), -1)
	for _, name := range declared(t) {
		if !slices.Contains(named, name) {
			t.Errorf("%s is not called", name)
		}
	}
}

func TestLibraryLinksOnlyLibc(t *testing.T) {
	libraries, err := open(t).ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range libraries {
		if name != "libc.so.6" && !strings.HasPrefix(name, "ld-linux") {
			t.Errorf("linked library %s", name)
		}
	}
}

func TestLibraryCannotBeUnloaded(t *testing.T) {
	const noDelete = 8 // DF_1_NODELETE of elf.h: Go cannot be unloaded
	flags, err := open(t).DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) == 0 || flags[0]&noDelete == 0 {
		t.Errorf("flags %v, %v", flags, err)
	}
}
