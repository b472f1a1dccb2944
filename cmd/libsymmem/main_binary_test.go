//go:build cgo

package main_test

import (
	"debug/elf"
	"os"
	"regexp"
	"slices"
	"testing"
)

// openELF opens libsymmem.so. The first call in the test process compiles the library.
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

// declaredFunctions returns the sorted names of the functions that symmem.h declares.
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
		isImported := s.Section == elf.SHN_UNDEF
		if !isImported {
			exported = append(exported, s.Name)
		}
	}

	slices.Sort(exported)
	want := declaredFunctions(t)
	const minFunctions = 60 // with fewer, declaredFunctions has missed some
	if len(want) < minFunctions {
		t.Fatalf("found %d functions in symmem.h, want at least %d", len(want), minFunctions)
	}

	if !slices.Equal(exported, want) {
		t.Errorf("exported functions differ:\ngot  %v\nwant %v, as declared in symmem.h", exported, want)
	}
}

// testdata/forked.c calls each function in a child of fork.
func TestForkedChildTestsAllFunctions(t *testing.T) {
	text, err := os.ReadFile("testdata/forked.c")
	if err != nil {
		t.Fatal(err)
	}

	code := cComment.ReplaceAllString(string(text), "")
	words := regexp.MustCompile(`\w+`).FindAllString(code, -1)
	for _, name := range declaredFunctions(t) {
		if !slices.Contains(words, name) {
			t.Errorf("forked.c does not mention %s", name)
		}
	}
}

func TestLibraryLinksOnlyGlibc(t *testing.T) {
	libraries, err := openELF(t).ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}

	// Versions of glibc before 2.34 consist of several libraries.
	glibc := regexp.MustCompile(`^(lib(c|pthread|dl|resolv)|ld-linux.*)\.so\.\d+$`)
	for _, name := range libraries {
		if !glibc.MatchString(name) {
			t.Errorf("the library links %s, want only glibc", name)
		}
	}
}

// Threads of the Go runtime would crash if dlclose unmapped their code.
func TestLibraryCannotBeUnloaded(t *testing.T) {
	const noDelete = 8 // DF_1_NODELETE in elf.h
	flags, err := openELF(t).DynValue(elf.DT_FLAGS_1)
	if err != nil {
		t.Fatal(err)
	}

	if len(flags) == 0 || flags[0]&noDelete == 0 {
		t.Errorf("DT_FLAGS_1 = %v, want a value with the flag %d", flags, noDelete)
	}
}
