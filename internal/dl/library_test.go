package dl_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
)

func libcFunction(t testing.TB, name string) dl.Symbol {
	t.Helper()
	library, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}

	return find(t, library, name)
}

func find(t testing.TB, library *dl.Library, name string) dl.Symbol {
	t.Helper()
	symbol, ok := library.Find(name)
	if !ok {
		t.Fatalf("%s has no function %s", library.Name(), name)
	}

	return symbol
}

func TestOpenReturnsFirstExistingLibrary(t *testing.T) {
	library, err := dl.Open("libnowhere.so.9", "libm.so.6", "libc.so.6")
	if err != nil {
		t.Fatal(err)
	}

	if library.Name() != "libm.so.6" {
		t.Errorf("Name() = %s, want libm.so.6", library.Name())
	}

	if _, ok := library.Find("cos"); !ok {
		t.Error("Find(\"cos\") failed in libm")
	}

	if _, ok := library.Find("cosine_of_nothing"); ok {
		t.Error("Find(\"cosine_of_nothing\") succeeded in libm")
	}
}

func TestPathIsMappedFile(t *testing.T) {
	library, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}

	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}

	if !filepath.IsAbs(library.Path()) {
		t.Errorf("Path() = %s, want an absolute path", library.Path())
	}

	isMapped := strings.Contains(string(maps), library.Path()+"\n")
	if !isMapped {
		t.Errorf("Path() = %s, want the path of a mapped file", library.Path())
	}
}

func TestOpenErrorNamesAllAttempts(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.so")
	if err := os.WriteFile(broken, []byte("no code"), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := dl.Open("libnowhere.so.9", broken)
	if err == nil {
		t.Fatal("Open succeeded without a valid library")
	}

	reasons := []string{
		"libnowhere.so.9: cannot open shared object file",
		broken + ": file too short",
	}
	for _, want := range reasons {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
}

func TestOpenRefusesEmptyNames(t *testing.T) {
	for description, names := range map[string][]string{
		"no names":      nil,
		"an empty name": {""}, // means the main program to dlopen
	} {
		t.Run(description, func(t *testing.T) {
			if _, err := dl.Open(names...); err == nil {
				t.Errorf("Open(%q) succeeded, want an error", names)
			}
		})
	}
}

// Open finds a loaded library by its soname, the name stored in the file.
func TestOpenReturnsLoadedLibrary(t *testing.T) {
	soname := "libsymmem_" + rand.Text() + ".so.1" // new in each run, because Open never unloads
	path := dltest.Compile(t, "libresident.so", "int answer(void) { return 42; }",
		"-Wl,-soname,"+soname)
	if _, ok := dl.FindLoaded(path); ok {
		t.Fatal("the library was loaded before Open")
	}

	opened, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	// No file has this name, so Open can only find the loaded library.
	loaded, err := dl.Open(soname)
	if err != nil {
		t.Fatal(err)
	}

	if loaded.Path() != opened.Path() {
		t.Errorf("the loaded library has path %s, want %s", loaded.Path(), opened.Path())
	}

	openedAnswer := find(t, opened, "answer")
	loadedAnswer := find(t, loaded, "answer")
	if openedAnswer != loadedAnswer {
		t.Errorf("address of answer = %#x in the opened library, %#x in the loaded; want the same",
			openedAnswer, loadedAnswer)
	}

	if got := openedAnswer.Call(); got != 42 {
		t.Errorf("answer() = %d, want 42", got)
	}
}

func TestPathResolvesSymlinks(t *testing.T) {
	path := dltest.Compile(t, "libfile.so", "int answer(void) { return 42; }")
	link := filepath.Join(t.TempDir(), "liblink.so")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}

	library, err := dl.Open(link)
	if err != nil {
		t.Fatal(err)
	}

	if library.Name() != link {
		t.Errorf("Name() = %s, want %s", library.Name(), link)
	}

	wantPath, err := filepath.EvalSymlinks(path) // the temporary folder may be a link, too
	if err != nil {
		t.Fatal(err)
	}

	if library.Path() != wantPath {
		t.Errorf("Path() = %s, want %s", library.Path(), wantPath)
	}
}
