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

// writeWheel creates an empty file where the wheel nvidia-nccl has the library, and returns its
// path. version is a folder such as python3.12.
func writeWheel(t *testing.T, prefix, version string) string {
	t.Helper()
	path := filepath.Join(prefix, "lib", version, "site-packages/nvidia/nccl/lib", soname)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// writeInterpreter creates PREFIX/bin/python3, which is a link to target unless target is "", and
// returns its path.
func writeInterpreter(t *testing.T, prefix, target string) string {
	t.Helper()
	path := filepath.Join(prefix, "bin/python3")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}

	var err error
	if target == "" {
		err = os.WriteFile(path, nil, 0o700)
	} else {
		err = os.Symlink(target, path)
	}

	if err != nil {
		t.Fatal(err)
	}

	return path
}

func TestLocationsAreInOrder(t *testing.T) {
	root := t.TempDir()
	venv, conda := filepath.Join(root, "venv"), filepath.Join(root, "conda")
	old, recent := writeWheel(t, venv, "python3.9"), writeWheel(t, venv, "python3.12")
	inConda := writeWheel(t, conda, "python3.11")
	noWheel := filepath.Join(root, "no wheel")
	prefixes := []pythonPrefix{{"$VIRTUAL_ENV", venv}, {"$CONDA_PREFIX", conda}, {"python3", noWheel}}
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
		"only the file of the environment variable": {
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

			if !searched[0].mustBeLoaded {
				t.Error("the first location is not the loaded copy")
			}

			if searched[len(searched)-1].mustBeLoaded {
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
	interpreter := writeInterpreter(t, base, "")
	writeInterpreter(t, venv, interpreter)
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
	broken := writeWheel(t, folder, "python3.12") // an empty file
	const absent = "libabsent.so.2"
	_, err := open([]location{
		{origin: "the loaded copy", mustBeLoaded: true, paths: []string{absent}},
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
	broken := writeWheel(t, t.TempDir(), "python3.12") // an empty file
	good := compile(t, allVersion, declarations)
	library, err := open([]location{{origin: "wheels", paths: []string{broken, good}}})
	if err != nil {
		t.Fatal(err)
	}

	if library.Path() != good || library.Origin() != "wheels" {
		t.Errorf("open loaded %s from %s, want %s from wheels", library.Path(), library.Origin(), good)
	}
}

func TestOpenRejectsOtherLibraries(t *testing.T) {
	path := dltest.Compile(t, "libother.so", "int other(void) { return 1; }")
	_, err := open(singleLocation(path))
	const want = "no ncclGetVersion"
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("open = %v, want ErrNoLibrary that mentions ncclGetVersion", err)
	}
}
