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

func libc(t testing.TB, name string) dl.Symbol {
	t.Helper()
	library, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	symbol, ok := library.Find(name)
	if !ok {
		t.Fatalf("libc has no %s", name)
	}
	return symbol
}

func TestALibraryIsTheFirstOfTheNamesThatThereIs(t *testing.T) {
	library, err := dl.Open("libnowhere.so.9", "libm.so.6", "libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if library.Name() != "libm.so.6" {
		t.Errorf("opened %s, want libm.so.6", library.Name())
	}
	if _, ok := library.Find("cos"); !ok {
		t.Error("libm has no cos")
	}
	if _, ok := library.Find("cosine_of_nothing"); ok {
		t.Error("libm has cosine_of_nothing")
	}
}

func TestThePathIsTheMappedFile(t *testing.T) {
	library, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(library.Path()) || !strings.Contains(string(maps), library.Path()+"\n") {
		t.Errorf("the path is %s, which is not mapped", library.Path())
	}
}

func TestTheErrorNamesEverythingThatWasTried(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.so")
	if err := os.WriteFile(broken, []byte("no code"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := dl.Open("libnowhere.so.9", broken)
	if err == nil {
		t.Fatal("opened a library that does not exist")
	}
	for _, want := range []string{
		"libnowhere.so.9: cannot open shared object file", broken + ": file too short",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want %q in it", err, want)
		}
	}
}

func TestOpenRefusesNamesOfNoLibrary(t *testing.T) {
	for name, names := range map[string][]string{
		"no name at all": nil, "an empty name, which dlopen takes for the program": {""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := dl.Open(names...); err == nil {
				t.Error("it was opened")
			}
		})
	}
}

func TestALibraryIsResidentOnceItIsOpened(t *testing.T) {
	soname := "libsymmem_" + rand.Text() + ".so.1" // unique, since libraries are never unloaded
	path := dltest.Compile(t, "libresident.so", "int answer(void) { return 42; }",
		"-Wl,-soname,"+soname)
	if _, ok := dl.Resident(path); ok {
		t.Fatal("it is resident before it was opened")
	}
	opened, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// The soname is sufficient now, although no file on the disk matches it.
	resident, err := dl.Open(soname)
	if err != nil {
		t.Fatal(err)
	}
	if resident.Path() != opened.Path() {
		t.Errorf("the resident copy is %s, want %s", resident.Path(), opened.Path())
	}
	a, _ := opened.Find("answer")
	b, _ := resident.Find("answer")
	if a != b || a.Call() != 42 {
		t.Errorf("the functions are at %#x and %#x", a, b)
	}
}

func TestThePathOfALinkIsTheFile(t *testing.T) {
	path := dltest.Compile(t, "libfile.so", "int answer(void) { return 42; }")
	link := filepath.Join(t.TempDir(), "liblink.so")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	library, err := dl.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := filepath.EvalSymlinks(path); library.Path() != want || library.Name() != link {
		t.Errorf("%s is %s, want %s", library.Name(), library.Path(), want)
	}
}
