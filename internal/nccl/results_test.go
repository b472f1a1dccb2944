package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
)

func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func half(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func TestNumbersOfACommunicator(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	recorder.Output(1, half(7))
	for name, number := range map[string]func(Comm) (int, error){
		"ncclCommCount": library.Count, "ncclCommCuDevice": library.Device,
		"ncclCommUserRank": library.UserRank,
	} {
		n, err := number(comm)
		if got := recorder.Last(); n != 7 || err != nil || got.Name != name || got.Args[0] != comm {
			t.Errorf("%s gives %d, %v from %s%v", name, n, err, got.Name, got.Args)
		}
	}
}

func TestAnIDComesBackWhole(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	var want UniqueID
	for i := range want {
		want[i] = byte(255 - i)
	}
	recorder.Output(0, want[:])
	if id, err := library.UniqueID(); id != want || err != nil {
		t.Errorf("the id is %v, %v", id, err)
	}
}

func TestACommunicatorIsMadeFromOneID(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	id := UniqueID{0: 1, 127: 2}
	recorder.Output(0, word(comm))
	recorder.Input(4, 128)
	made, err := library.CommInitRank(8, 3, id)
	got := recorder.Last()
	if made != comm || err != nil || got.Name != "ncclCommInitRankScalable" {
		t.Fatalf("it made %#x, %v by %s", made, err, got.Name)
	}
	if got.Args[1] != 8 || got.Args[2] != 3 || got.Args[3] != 1 || got.Args[5] != 0 ||
		UniqueID(got.Seen[4][:128]) != id {
		t.Errorf("called with %v and id %v", got.Args, got.Seen[4][:128])
	}
}

func TestACommunicatorThatDoesNotBlockIsUnderWay(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	recorder.Output(0, word(comm))
	recorder.Result(7)
	if _, err := library.CommInitRank(2, 0, UniqueID{}); !errors.Is(err, ErrInProgress) {
		t.Errorf("it is made with %v, want ErrInProgress", err)
	}
	recorder.Reset()
	recorder.Output(1, half(7))
	if err := library.AsyncError(comm); !errors.Is(err, ErrInProgress) {
		t.Errorf("it is %v, want ErrInProgress", err)
	}
}

func TestHandlesOfRegistrations(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	for _, handle := range []uint64{other, 0} { // window 0 is legal
		recorder.Output(3, word(handle))
		window, err := library.WindowRegister(comm, address, many, WindowSymmetric)
		got := recorder.Last()
		if uint64(window) != handle || err != nil || got.Name != "ncclCommWindowRegister" ||
			got.Args[0] != comm || got.Args[1] != address || got.Args[2] != many || got.Args[4] != 1 {
			t.Errorf("window %#x, %v by %s%#x", window, err, got.Name, got.Args)
		}
	}
	recorder.Reset()
	if err := library.WindowDeregister(comm, 0); err != nil || recorder.Last().Name != "" {
		t.Errorf("window 0 was deregistered by %q, %v", recorder.Last().Name, err)
	}
}

func TestCellsAreNeverUsedTwice(t *testing.T) {
	var c cells
	seen := map[*uintptr]bool{}
	for i := range 3*cellsInBlock + 1 {
		cell := c.take()
		if seen[cell] || *cell != 0 {
			t.Fatalf("cell %d is used", i)
		}
		seen[cell], *cell = true, 1
	}
}

func TestErrorsAreTyped(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newer)
	recorder.Result(5)
	err := library.GroupEnd()
	var typed *Error
	if !errors.Is(err, ErrInvalidUsage) || errors.Is(err, ErrRemote) || !errors.As(err, &typed) {
		t.Fatalf("the error is %v, want ErrInvalidUsage", err)
	}
	want := Error{"ncclGroupEnd", ErrInvalidUsage, "invalid usage", "Duplicate GPU detected"}
	if *typed != want {
		t.Errorf("the error is %+v, want %+v", *typed, want)
	}
	if want := "ncclGroupEnd: invalid usage (5): Duplicate GPU detected"; err.Error() != want {
		t.Errorf("the text is %q, want %q", err, want)
	}
	recorder.Reset()
	recorder.Output(1, half(6))
	if err := library.AsyncError(comm); !errors.Is(err, ErrRemote) {
		t.Errorf("a lost peer is %v, want ErrRemote", err)
	}
}

func TestVersionsDecideWhatThereIs(t *testing.T) {
	for name, c := range map[string]struct {
		version, declarations string
		windows               bool
		refused               map[string]string
	}{
		"2.26 has no windows, and says which version has": {
			"22605", declarations, false, map[string]string{
				"window":   "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.26.5",
				"alltoall": "ncclAlltoAll needs NCCL 2.28.3, and * is 2.26.5",
			},
		},
		"2.27.1 has windows that are not ready": {
			"22701", declarations + newer, false, map[string]string{
				"window":     "ncclCommWindowRegister needs NCCL 2.27.3, and * is 2.27.1",
				"deregister": "ncclCommWindowDeregister needs NCCL 2.27.3, and * is 2.27.1",
			},
		},
		"2.28.9 has what it exports": {
			"22809", declarations + newer, true, map[string]string{},
		},
		"one that is new enough and lacks a function says so": {
			"23007", declarations, false, map[string]string{
				"alltoall": "* (NCCL 2.30.7) has no ncclAlltoAll",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			library, recorder := load(t, c.version, c.declarations)
			if library.Windows() != c.windows {
				t.Errorf("windows: %v, want %v", library.Windows(), c.windows)
			}
			if err := queue(library.AllReduce(1, 2, 3, Float32, Sum, comm)); err != nil {
				t.Errorf("the plain path gives %v", err)
			}
			recorder.Reset()
			_, window := library.WindowRegister(comm, address, many, WindowSymmetric)
			for call, err := range map[string]error{
				"window": window, "deregister": library.WindowDeregister(comm, 1),
				"alltoall": queue(library.AlltoAll(1, 2, 3, Int8, comm)),
			} {
				want, refused := c.refused[call]
				if refused {
					checkRefused(t, library, err, want)
				} else if err != nil && c.windows {
					t.Errorf("%s gives %v", call, err)
				}
			}
		})
	}
}

// checkRefused compares a refusal with a text in which * stands for the library's file.
func checkRefused(t *testing.T, l *Library, err error, want string) {
	t.Helper()
	var typed *VersionError
	if !errors.As(err, &typed) || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("the error is %v, want a VersionError", err)
	}
	before, after := want, ""
	for i := range want {
		if want[i] == '*' {
			before, after = want[:i], want[i+1:]
		}
	}
	if err.Error() != before+l.Path()+after {
		t.Errorf("the error is %q, want %q", err, want)
	}
}

func TestVersionsReadAsPeopleWriteThem(t *testing.T) {
	for code, want := range map[int]string{
		22703: "2.27.3", 22809: "2.28.9", 23007: "2.30.7", 2708: "2.7.8", 21003: "2.10.3",
	} {
		if got := VersionText(code); got != want {
			t.Errorf("%d reads %s, want %s", code, got, want)
		}
	}
}
