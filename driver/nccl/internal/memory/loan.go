package memory

import (
	"context"
	"fmt"
	"os"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control/shm"
	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// Lender lends memory of a GPU to ranks of the same machine, and borrows theirs.
type Lender struct {
	GPU *gpu.GPU
	// Machine joins the ranks of this machine, and hands them descriptors.
	Machine *shm.Machine
}

// Offer exports an allocation under a key until the descriptor that it returns is withdrawn. It is
// called on a thread of the context.
func (l *Lender) Offer(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := l.GPU.CUDA.ExportFD(handle)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "device memory")
	l.Machine.Export(key, f)
	return f, nil
}

// Withdraw ends an offer.
func (l *Lender) Withdraw(key handoff.Key, f *os.File) error {
	l.Machine.Withdraw(key)
	return f.Close()
}

// Fetch maps what a rank of this machine has exported.
func (l *Lender) Fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64,
) (at uintptr, err error) {
	f, err := l.Machine.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer f.Close()
	at, err = l.GPU.MapImported(bytes, func() (cuda.Handle, error) {
		return l.GPU.CUDA.ImportFD(int(f.Fd()))
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}
	return at, nil
}

// Loans are those of a group.
type Loans struct {
	*Lender
	// Apart reports whether ranks cannot hand descriptors to each other: they are in several
	// containers or on several machines.
	Apart bool
}

// Loan is an allocation that the other ranks of a group may map until it is withdrawn. The zero
// value is none.
type Loan struct {
	lender *Lender
	key    handoff.Key
	file   *os.File
	// Fabric is the handle to tell them, for a group whose ranks are apart, or nil.
	Fabric []byte
}

// Lend offers an allocation to the other ranks of the group under a key. It is called on a thread
// of the context.
func (l *Loans) Lend(key handoff.Key, handle cuda.Handle) (Loan, error) {
	if l.Apart {
		fabric, err := l.GPU.CUDA.ExportFabric(handle)
		if err != nil {
			return Loan{}, err
		}
		return Loan{lender: l.Lender, Fabric: fabric[:]}, nil
	}
	file, err := l.Offer(key, handle)
	if err != nil {
		return Loan{}, err
	}
	return Loan{lender: l.Lender, key: key, file: file}, nil
}

// Told is what the other ranks are told of a loan: nothing if there is none.
func (l *Loan) Told() []byte {
	if l.lender == nil {
		return nil
	}
	return append([]byte{1}, l.Fabric...)
}

// Withdraw ends the offer of a descriptor. A fabric handle is good for as long as its memory.
func (l *Loan) Withdraw() {
	if l.file != nil {
		_ = l.lender.Withdraw(l.key, l.file) // which only closes a descriptor
	}
}

// Borrow maps what a rank of the group has lent: fabric is what that one has told, or nothing.
func (l *Loans) Borrow(
	ctx context.Context, rank int, key handoff.Key, fabric []byte, bytes int64,
) (uintptr, error) {
	if !l.Apart {
		return l.Fetch(ctx, rank, key, bytes)
	}
	var handle cuda.FabricHandle
	if copy(handle[:], fabric) != len(handle) || len(fabric) != len(handle) {
		return 0, fmt.Errorf("rank %d has told a fabric handle of %d bytes", rank, len(fabric))
	}
	at, err := l.GPU.MapImported(bytes, func() (cuda.Handle, error) {
		return l.GPU.CUDA.ImportFabric(handle)
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d by its fabric handle, which takes NVLink "+
			"between the two: %w", rank, err)
	}
	return at, nil
}
