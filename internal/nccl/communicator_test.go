package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
)

// The tests of this file call a fake library, whose functions record their calls. After
// recorder.SetOutput(1, data), they store data through their second argument, a pointer.

// allVersion is NCCL 2.28.9, which supports windows and ncclAlltoAll.
const allVersion = "22809"

func word64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func word32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func TestCommunicatorProperties(t *testing.T) {
	const want = 7 // arbitrary value of all properties
	library, recorder := load(t, allVersion, declarations+newerDeclarations)
	recorder.SetOutput(1, word32(want))
	for name, property := range map[string]func(Comm) (int, error){ // by name of the C function
		"ncclCommCount":    library.Count,
		"ncclCommCuDevice": library.Device,
		"ncclCommUserRank": library.UserRank,
	} {
		n, err := property(comm)
		if n != want || err != nil {
			t.Errorf("the method for %s = %d, %v; want %d", name, n, err, want)
		}

		got := recorder.LastCall()
		if got.Name != name || got.Args[0] != comm {
			t.Errorf("got a call to %s%#x; want %s with communicator %#x", got.Name, got.Args, name,
				comm)
		}
	}
}

func TestUniqueIDReturnsAllBytes(t *testing.T) {
	library, recorder := load(t, allVersion, declarations+newerDeclarations)
	var want UniqueID
	for i := range want {
		want[i] = byte(255 - i) // distinct and nonzero
	}

	recorder.SetOutput(0, want[:])
	if id, err := library.UniqueID(); id != want || err != nil {
		t.Errorf("UniqueID() = %v, %v; want %v", id, err, want)
	}
}

func TestCommInitRankPassesID(t *testing.T) {
	library, recorder := load(t, allVersion, declarations+newerDeclarations)
	id := UniqueID{0: 1, 127: 2} // nonzero at both ends
	const (                      // positions of the arguments of ncclCommInitRankScalable
		newcomm = iota
		nranks
		myrank
		nID
		commIDs
		config
	)
	recorder.SetOutput(newcomm, word64(comm))
	recorder.RecordMemory(commIDs, len(id))
	const ranks, rank = 8, 3 // arbitrary
	handle, err := library.CommInitRank(ranks, rank, id)
	got := recorder.LastCall()
	if handle != comm || err != nil || got.Name != "ncclCommInitRankScalable" {
		t.Fatalf("CommInitRank = %#x, %v from %s; want %#x", handle, err, got.Name, comm)
	}

	for index, want := range map[int]int64{nranks: ranks, myrank: rank, nID: 1, config: 0} {
		if got.Args[index] != want {
			t.Errorf("CommInitRank passed %d as argument %d, want %d", got.Args[index], index, want)
		}
	}

	if gotID := UniqueID(got.Memory[commIDs][:len(id)]); gotID != id {
		t.Errorf("CommInitRank passed ID %v, want %v", gotID, id)
	}
}

// CommInitRank gets the error as a return value of NCCL, and AsyncError gets it through a pointer.
func TestNonblockingCommunicatorReturnsErrInProgress(t *testing.T) {
	const inProgress = 7 // ncclInProgress
	library, recorder := load(t, allVersion, declarations+newerDeclarations)
	recorder.SetOutput(0, word64(comm))
	recorder.SetResult(inProgress)
	if _, err := library.CommInitRank(2, 0, UniqueID{}); !errors.Is(err, ErrInProgress) {
		t.Errorf("CommInitRank = %v, want ErrInProgress", err)
	}

	recorder.Reset()
	recorder.SetOutput(1, word32(inProgress))
	if err := library.AsyncError(comm); !errors.Is(err, ErrInProgress) {
		t.Errorf("AsyncError = %v, want ErrInProgress", err)
	}
}

// NCCL stores window 0 for a communicator without windows, and WindowDeregister ignores window 0.
func TestWindowRegisterReturnsHandle(t *testing.T) {
	library, recorder := load(t, allVersion, declarations+newerDeclarations)
	const symmetric = 1 // NCCL_WIN_COLL_SYMMETRIC
	for _, handle := range []uint64{otherAddress, 0} {
		// Argument 3 of ncclCommWindowRegister(comm, buff, size, win, winFlags) is an output.
		recorder.SetOutput(3, word64(handle))
		window, err := library.WindowRegister(comm, address, bigCount)
		if uint64(window) != handle || err != nil {
			t.Errorf("WindowRegister = %#x, %v; want %#x", window, err, handle)
		}

		got := recorder.LastCall()
		if got.Name != "ncclCommWindowRegister" {
			t.Fatalf("WindowRegister called %s, want ncclCommWindowRegister", got.Name)
		}

		wanted := map[int]int64{0: comm, 1: address, 2: bigCount, 4: symmetric}
		for index, want := range wanted {
			if got.Args[index] != want {
				t.Errorf("WindowRegister passed %#x as argument %d, want %#x", got.Args[index], index,
					want)
			}
		}
	}

	recorder.Reset()
	if err := library.WindowDeregister(comm, 0); err != nil || recorder.LastCall().Name != "" {
		t.Errorf("WindowDeregister of window 0 = %v after a call to %q, want nil and no call", err,
			recorder.LastCall().Name)
	}
}
