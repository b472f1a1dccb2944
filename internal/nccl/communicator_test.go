package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
)

// word64 and word32 return the bytes of an integer, for outputs of C functions.
func word64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func word32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// TestCommunicatorProperties lets the C functions store a number through their argument 1.
func TestCommunicatorProperties(t *testing.T) {
	const want = 7
	library, recorder := load(t, "22809", declarations+newerDeclarations)
	recorder.SetOutput(1, word32(want))
	for name, property := range map[string]func(Comm) (int, error){
		"ncclCommCount": library.Count, "ncclCommCuDevice": library.Device,
		"ncclCommUserRank": library.UserRank,
	} {
		n, err := property(comm)
		got := recorder.LastCall()
		if n != want || err != nil || got.Name != name || got.Args[0] != comm {
			t.Errorf("%s: got %d, %v after a call to %s%v; want %d", name, n, err, got.Name, got.Args,
				want)
		}
	}
}

func TestUniqueIDReturnsAllBytes(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newerDeclarations)
	var want UniqueID
	for i := range want {
		want[i] = byte(255 - i)
	}
	recorder.SetOutput(0, want[:])
	if id, err := library.UniqueID(); id != want || err != nil {
		t.Errorf("UniqueID() = %v, %v; want %v", id, err, want)
	}
}

func TestCommInitRankPassesID(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newerDeclarations)
	id := UniqueID{0: 1, 127: 2}
	recorder.SetOutput(0, word64(comm))
	recorder.RecordMemory(4, len(id)) // argument 4 points to the ID
	const ranks, rank = 8, 3
	handle, err := library.CommInitRank(ranks, rank, id)
	got := recorder.LastCall()
	if handle != comm || err != nil || got.Name != "ncclCommInitRankScalable" {
		t.Fatalf("CommInitRank = %#x, %v from %s; want %#x", handle, err, got.Name, comm)
	}
	gotID := UniqueID(got.Memory[4][:len(id)])
	if got.Args[1] != ranks || got.Args[2] != rank || got.Args[3] != 1 || got.Args[5] != 0 ||
		gotID != id {
		t.Errorf("CommInitRank passed %v and ID %v, want rank %d of %d and ID %v", got.Args, gotID,
			rank, ranks, id)
	}
}

// TestNonblockingCommunicatorReturnsErrInProgress lets the C functions return or store
// ncclInProgress.
func TestNonblockingCommunicatorReturnsErrInProgress(t *testing.T) {
	const inProgress = 7 // ncclInProgress
	library, recorder := load(t, "22809", declarations+newerDeclarations)
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

func TestWindowRegisterReturnsHandle(t *testing.T) {
	library, recorder := load(t, "22809", declarations+newerDeclarations)
	for _, handle := range []uint64{otherAddress, 0} { // NCCL returns 0 if windows are not supported
		recorder.SetOutput(3, word64(handle))
		window, err := library.WindowRegister(comm, address, bigCount)
		got := recorder.LastCall()
		if uint64(window) != handle || err != nil || got.Name != "ncclCommWindowRegister" ||
			got.Args[0] != comm || got.Args[1] != address || got.Args[2] != bigCount || got.Args[4] != 1 {
			t.Errorf("WindowRegister = %#x, %v from %s%#x; want %#x",
				window, err, got.Name, got.Args, handle)
		}
	}
	recorder.Reset()
	if err := library.WindowDeregister(comm, 0); err != nil || recorder.LastCall().Name != "" {
		t.Errorf("WindowDeregister of window 0 = %v after a call to %q, want nil and no call", err,
			recorder.LastCall().Name)
	}
}
