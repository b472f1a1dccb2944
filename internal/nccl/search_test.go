package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/internal/dl/dltest"
)

// environment returns a substitute for os.Getenv.
func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

// writeEmptyLibrary creates an empty file where pip would install NCCL, and returns its path.
// pythonFolder is a name such as python3.12.
func writeEmptyLibrary(t *testing.T, prefix, pythonFolder string) string {
	t.Helper()
	path := filepath.Join(prefix, "lib", pythonFolder, "site-packages/nvidia/nccl/lib", soname)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// makeInterpreterFolder creates PREFIX/bin, and returns the path of a python3 in this folder, which
// does not exist yet.
func makeInterpreterFolder(t *testing.T, prefix string) string {
	t.Helper()
	folder := filepath.Join(prefix, "bin")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}

	return filepath.Join(folder, "python3")
}

func TestLocationsAreInOrder(t *testing.T) {
	root := t.TempDir()
	venv, conda := filepath.Join(root, "venv"), filepath.Join(root, "conda")
	old, recent := writeEmptyLibrary(t, venv, "python3.9"), writeEmptyLibrary(t, venv, "python3.12")
	inConda := writeEmptyLibrary(t, conda, "python3.11")
	noWheel := filepath.Join(root, "no wheel")
	prefixes := []pythonPrefix{
		{origin: "$VIRTUAL_ENV", folder: venv},
		{origin: "$CONDA_PREFIX", folder: conda},
		{origin: "python3", folder: noWheel},
	}
	for name, c := range map[string]struct {
		variables map[string]string
		want      []string
	}{
		"wheels before the system": {
			variables: nil,
			want: []string{
				soname, // copy that the process has loaded
				recent, old, inConda,
				filepath.Join(noWheel, "lib/python3*/site-packages/nvidia/nccl/lib", soname),
				soname, // copy that the system's loader finds
			},
		},
		"only the loaded copy and $SYMMEM_NCCL": {
			variables: map[string]string{PathVariable: "/opt/libnccl.so"},
			want:      []string{soname, "/opt/libnccl.so"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			searched := locations(environment(c.variables), prefixes)
			var got []string
			for _, location := range searched {
				got = append(got, location.paths...)
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("locations returned\n%s\nwant\n%s",
					strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}

			if !searched[0].onlyLoaded {
				t.Error("the first location is not the loaded copy")
			}

			if last := searched[len(searched)-1]; last.onlyLoaded {
				t.Error("the last location is the loaded copy")
			}
		})
	}
}

// The python3 of a virtual environment is a link into another installation.
func TestPythonPrefixesFollowLinks(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	base, venv := filepath.Join(root, "base"), filepath.Join(root, "venv")
	interpreter := makeInterpreterFolder(t, base)
	if err := os.WriteFile(interpreter, nil, 0o700); err != nil {
		t.Fatal(err)
	}

	link := makeInterpreterFolder(t, venv)
	if err := os.Symlink(interpreter, link); err != nil {
		t.Fatal(err)
	}

	t.Setenv("PATH", filepath.Join(venv, "bin"))
	for name, c := range map[string]struct {
		variables map[string]string
		want      []string
	}{
		"the link in $PATH and its target": {
			variables: nil,
			want:      []string{venv, base},
		},
		"active environments first, without duplicates": {
			variables: map[string]string{"VIRTUAL_ENV": venv, "CONDA_PREFIX": "/opt/conda"},
			want:      []string{venv, "/opt/conda", base},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range pythonPrefixes(environment(c.variables)) {
				got = append(got, p.folder)
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("pythonPrefixes returned %v, want %v", got, c.want)
			}
		})
	}
}

func TestOpenErrorListsAllAttempts(t *testing.T) {
	folder := t.TempDir()
	broken := writeEmptyLibrary(t, folder, "python3.12")
	const absent = "libabsent.so.2"
	_, err := openFirst([]location{
		{origin: "the loaded copy", onlyLoaded: true, paths: []string{absent}},
		{origin: "a wheel", paths: []string{broken}},
		{origin: "the loader", paths: []string{absent}},
	})
	if !errors.Is(err, ErrNoLibrary) {
		t.Fatalf("open = %v, want ErrNoLibrary", err)
	}

	for _, want := range []string{
		"the loaded copy: " + absent + " is not loaded", "a wheel: opening " + broken,
		"the loader: opening " + absent, "pip install", "$" + PathVariable,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("open = %q, want an error that contains %q", err, want)
		}
	}
}

func TestOpenSkipsBrokenLibraries(t *testing.T) {
	broken := writeEmptyLibrary(t, t.TempDir(), "python3.12")
	good := compile(t, allVersion, declarations)
	library, err := openFirst([]location{{origin: "wheels", paths: []string{broken, good}}})
	if err != nil {
		t.Fatal(err)
	}

	if library.Path() != good || library.Origin() != "wheels" {
		t.Errorf("open loaded %s from %s, want %s from wheels", library.Path(), library.Origin(), good)
	}
}

func TestOpenRejectsOtherLibraries(t *testing.T) {
	path := dltest.Compile(t, "libother.so", "int other(void) { return 1; }")
	_, err := openFirst(singleLocation(path))
	const want = "no ncclGetVersion"
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("open = %v, want ErrNoLibrary that mentions ncclGetVersion", err)
	}
}
