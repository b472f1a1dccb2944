package nccl

import (
	"errors"
	"testing"
)

func TestOlderVersionsLackFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		version, declarations string
		windows               bool
		unsupported           map[string]string
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
				want, ok := c.unsupported[call]
				if ok {
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
	var typed *VersionError
	if !errors.As(err, &typed) || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("got error %v, want a VersionError", err)
	}
	before, after := want, ""
	for i := range want {
		if want[i] == '*' {
			before, after = want[:i], want[i+1:]
		}
	}
	if err.Error() != before+l.Path()+after {
		t.Errorf("got error %q, want %q", err, want)
	}
}

func TestVersionText(t *testing.T) {
	for code, want := range map[int]string{
		22703: "2.27.3", 22809: "2.28.9", 23007: "2.30.7", 2708: "2.7.8", 21003: "2.10.3",
	} {
		if got := VersionText(code); got != want {
			t.Errorf("VersionText(%d) = %s, want %s", code, got, want)
		}
	}
}
