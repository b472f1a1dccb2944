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
		wantErrors   map[string]string // by call; * stands for the path of the library
	}{
		"2.26 has no windows": {
			version: "22605", declarations: declarations, hasWindows: false,
			wantErrors: map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.26.5",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.26.5",
				"alltoall":   "ncclAlltoAll needs NCCL 2.28.3, and * is 2.26.5",
			},
		},
		"2.27.1 has unusable windows": {
			version: "22701", declarations: declarations + newerDeclarations, hasWindows: false,
			wantErrors: map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.27.1",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.27.1",
			},
		},
		"2.28.9 has all functions": {
			version: "22809", declarations: declarations + newerDeclarations, hasWindows: true,
			wantErrors: nil,
		},
		"a new version lacks functions": {
			version: "23007", declarations: declarations, hasWindows: false,
			wantErrors: map[string]string{
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

			allReduce := library.AllReduce(address, otherAddress, bigCount, Float32, Sum, comm)
			if err := queue(allReduce); err != nil {
				t.Errorf("AllReduce = %v, want nil", err)
			}

			recorder.Reset()
			_, windowErr := library.WindowRegister(comm, address, bigCount)
			const window = 1 // arbitrary
			deregisterErr := library.WindowDeregister(comm, window)
			allToAllErr := queue(library.AlltoAll(address, otherAddress, bigCount, Int8, comm))
			for call, err := range map[string]error{
				"window":     windowErr,
				"deregister": deregisterErr,
				"alltoall":   allToAllErr,
			} {
				if want, fails := c.wantErrors[call]; fails {
					checkUnsupported(t, library, err, want)
				} else if err != nil {
					t.Errorf("%s = %v, want nil", call, err)
				}
			}
		})
	}
}

func checkUnsupported(t *testing.T, library *Library, err error, want string) {
	t.Helper()
	if !errors.As(err, new(*VersionError)) || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("got error %v, want a VersionError", err)
	}

	want = strings.Replace(want, "*", library.Path(), 1)
	if err.Error() != want {
		t.Errorf("got error %q, want %q", err, want)
	}
}

// The minor version has one digit in the codes of versions before 2.9, and two digits since.
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
