//go:build cgo

package main_test

import (
	"debug/elf"
	"os"
	"regexp"
	"slices"
	"testing"
)

func openELF(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(build(t).library)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

var cComment = regexp.MustCompile(`(?s)/\*.*?\*/`)

// declaredFunctions returns the names of the functions that symmem.h declares, sorted.
func declaredFunctions(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("symmem.h")
	if err != nil {
		t.Fatal(err)
	}
	code := cComment.ReplaceAllString(string(text), "")
	declaration := regexp.MustCompile(`\b((?:symmem|nccl)_\w+)\(`)
	var names []string
	for _, match := range declaration.FindAllStringSubmatch(code, -1) {
		names = append(names, match[1])
	}
	slices.Sort(names)
	return names
}

func TestLibraryExportsDeclaredFunctions(t *testing.T) {
	symbols, err := openELF(t).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
	}
	slices.Sort(exported)
	want := declaredFunctions(t)
	const minFunctions = 60 // fewer means that the search for declarations is broken
	if len(want) < minFunctions {
		t.Fatalf("found %d functions in symmem.h, want at least %d", len(want), minFunctions)
	}
	if !slices.Equal(exported, want) {
		t.Errorf("exported functions:\n%v\nwant those of symmem.h:\n%v", exported, want)
	}
}

// TestForkedChildTestsAllFunctions checks that testdata/forked.c, which calls the library in a
// forked child, mentions every function that symmem.h declares.
func TestForkedChildTestsAllFunctions(t *testing.T) {
	text, err := os.ReadFile("testdata/forked.c")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`\w+`).FindAllString(cComment.ReplaceAllString(string(text), ""), -1)
	for _, name := range declaredFunctions(t) {
		if !slices.Contains(words, name) {
			t.Errorf("forked.c does not mention %s", name)
		}
	}
}

// TestLibraryLinksOnlyGlibc checks that the library needs no other libraries than those of glibc,
// which consisted of several before version 2.34.
func TestLibraryLinksOnlyGlibc(t *testing.T) {
	libraries, err := openELF(t).ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	glibc := regexp.MustCompile(`^(lib(c|pthread|dl|resolv)|ld-linux.*)\.so\.\d+$`)
	for _, name := range libraries {
		if !glibc.MatchString(name) {
			t.Errorf("the library links %s, want only glibc", name)
		}
	}
}

func TestLibraryCannotBeUnloaded(t *testing.T) {
	const noDelete = 8 // DF_1_NODELETE in elf.h; the Go runtime cannot be unloaded
	flags, err := openELF(t).DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) == 0 || flags[0]&noDelete == 0 {
		t.Errorf("DT_FLAGS_1 = %v, %v; want bit %d set", flags, err, noDelete)
	}
}
