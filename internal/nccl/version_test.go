package nccl

import (
	"errors"
	"strings"
	"testing"
)

func TestOlderVersionsLackFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		version      string
		declarations string // C code of the library's functions
		hasWindows   bool
		unsupported  map[string]string // errors by failing call; * stands for the library's path
	}{
		"2.26 has no windows": {
			version: "22605", declarations: declarations, hasWindows: false,
			unsupported: map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.26.5",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.26.5",
				"alltoall":   "ncclAlltoAll needs NCCL 2.28.3, and * is 2.26.5",
			},
		},
		"2.27.1 has unusable windows": {
			version: "22701", declarations: declarations + newerDeclarations, hasWindows: false,
			unsupported: map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.27.1",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.27.1",
			},
		},
		"2.28.9 has all functions": {
			version: "22809", declarations: declarations + newerDeclarations, hasWindows: true,
			unsupported: nil,
		},
		"a new version lacks functions": {
			version: "23007", declarations: declarations, hasWindows: false,
			unsupported: map[string]string{
				"window":     "* (NCCL 2.30.7) has no ncclCommWindowRegister",
				"deregister": "* (NCCL 2.30.7) has no ncclCommWindowDeregister",
				"alltoall":   "* (NCCL 2.30.7) has no ncclAlltoAll",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			library, recorder := load(t, c.version, c.declarations)
			if got := library.HasWindows(); got != c.hasWindows {
				t.Errorf("HasWindows() = %t, want %t", got, c.hasWindows)
			}

			if err := queue(library.AllReduce(1, 2, 3, Float32, Sum, comm)); err != nil {
				t.Errorf("AllReduce = %v, want nil", err)
			}

			recorder.Reset()
			_, windowErr := library.WindowRegister(comm, address, bigCount)
			deregisterErr := library.WindowDeregister(comm, 1)
			allToAllErr := queue(library.AlltoAll(1, 2, 3, Int8, comm))
			for call, err := range map[string]error{
				"window":     windowErr,
				"deregister": deregisterErr,
				"alltoall":   allToAllErr,
			} {
				want, isUnsupported := c.unsupported[call]
				if isUnsupported {
					checkUnsupported(t, library, err, want)
				} else if err != nil {
					t.Errorf("%s = %v, want nil", call, err)
				}
			}
		})
	}
}

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

// Before 2.9, the minor version has one digit in the number, and since then, it has two.
func TestVersionText(t *testing.T) {
	for code, want := range map[int]string{
		2708:  "2.7.8",
		21003: "2.10.3",
		22703: "2.27.3",
		22809: "2.28.9",
		23007: "2.30.7",
	} {
		if got := VersionText(code); got != want {
			t.Errorf("VersionText(%d) = %s, want %s", code, got, want)
		}
	}
}
