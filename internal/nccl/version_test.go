package nccl

import (
	"errors"
	"strings"
	"testing"
)

// TestOlderVersionsLackFunctions loads libraries with given versions and functions. Calls of a
// function that a library lacks must fail with an error that names the required version.
func TestOlderVersionsLackFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		version      string // as ncclGetVersion returns it
		declarations string // C code of the functions that the library has
		windows      bool   // windows must be supported
		// unsupported has the error of each call that must fail. * stands for the library's path.
		unsupported map[string]string
	}{
		"2.26 has no windows": {
			"22605", declarations, false, map[string]string{
				"window":   "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.26.5",
				"alltoall": "ncclAlltoAll needs NCCL 2.28.3, and * is 2.26.5",
			},
		},
		"2.27.1 has unusable windows": {
			"22701", declarations + newerDeclarations, false, map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.27.1",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.27.1",
			},
		},
		"2.28.9 has all functions": {
			"22809", declarations + newerDeclarations, true, map[string]string{},
		},
		"a new version lacks a function": {
			"23007", declarations, false, map[string]string{
				"alltoall": "* (NCCL 2.30.7) has no ncclAlltoAll",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			library, recorder := load(t, c.version, c.declarations)
			if library.HasWindows() != c.windows {
				t.Errorf("HasWindows() = %v, want %v", library.HasWindows(), c.windows)
			}
			if err := queue(library.AllReduce(1, 2, 3, Float32, Sum, comm)); err != nil {
				t.Errorf("AllReduce = %v, want nil", err)
			}
			recorder.Reset()
			_, windowErr := library.WindowRegister(comm, address, bigCount)
			for call, err := range map[string]error{
				"window": windowErr, "deregister": library.WindowDeregister(comm, 1),
				"alltoall": queue(library.AlltoAll(1, 2, 3, Int8, comm)),
			} {
				want, isUnsupported := c.unsupported[call]
				if isUnsupported {
					checkUnsupported(t, library, err, want)
				} else if err != nil && c.windows {
					t.Errorf("%s = %v, want nil", call, err)
				}
			}
		})
	}
}

// checkUnsupported compares an error with a text in which * stands for the library's path.
func checkUnsupported(t *testing.T, l *Library, err error, want string) {
	t.Helper()
	if !errors.As(err, new(*VersionError)) || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("got error %v, want a VersionError", err)
	}
	want = strings.Replace(want, "*", l.Path(), 1)
	if err.Error() != want {
		t.Errorf("got error %q, want %q", err, want)
	}
}

// TestVersionText uses codes with two digits for the minor version and, before 2.9, with one.
func TestVersionText(t *testing.T) {
	for code, want := range map[int]string{
		22703: "2.27.3", 22809: "2.28.9", 23007: "2.30.7", 2708: "2.7.8", 21003: "2.10.3",
	} {
		if got := VersionText(code); got != want {
			t.Errorf("VersionText(%d) = %s, want %s", code, got, want)
		}
	}
}
