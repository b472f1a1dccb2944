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

// Exporter exports GPU memory to ranks of the same machine, and maps memory that other ranks have
// exported.
type Exporter struct {
	GPU *gpu.GPU
	// Machine connects the ranks of this machine and sends file descriptors to them.
	Machine *shm.Machine
}

// Export exports an allocation under a key until the returned file is passed to Withdraw. It must
// be called on a thread of the context.
func (l *Exporter) Export(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := l.GPU.CUDA.ExportFD(handle)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "device memory")
	l.Machine.Export(key, f)
	return f, nil
}

// Withdraw ends an export.
func (l *Exporter) Withdraw(key handoff.Key, f *os.File) error {
	l.Machine.Withdraw(key)
	return f.Close()
}

// Fetch maps memory that a rank of this machine has exported. It returns the first address, which
// is at unless at is 0; see GPU.MapImported.
func (l *Exporter) Fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64, at uintptr,
) (address uintptr, err error) {
	f, err := l.Machine.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer f.Close()
	address, err = l.GPU.MapImported(at, bytes, func() (cuda.Handle, error) {
		return l.GPU.CUDA.ImportFD(int(f.Fd()))
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}
	return address, nil
}

// Sharing exports memory to the ranks of one group, and maps memory that other ranks have exported.
type Sharing struct {
	*Exporter
	// Apart is set if the ranks cannot send each other file descriptors, because they are in
	// several containers or on several machines.
	Apart bool
}

// Shared is an allocation that the other ranks of a group may map until Withdraw. The zero value
// refers to no allocation.
type Shared struct {
	exporter *Exporter
	key      handoff.Key
	file     *os.File
	// Fabric is the handle to send to the other ranks if descriptors cannot be sent, and otherwise
	// nil.
	Fabric []byte
}

// Share exports an allocation to the group's other ranks under a key. It must be called on a thread
// of the context.
func (l *Sharing) Share(key handoff.Key, handle cuda.Handle) (Shared, error) {
	if l.Apart {
		fabric, err := l.GPU.CUDA.ExportFabric(handle)
		if err != nil {
			return Shared{}, err
		}
		return Shared{exporter: l.Exporter, Fabric: fabric[:]}, nil
	}
	file, err := l.Export(key, handle)
	if err != nil {
		return Shared{}, err
	}
	return Shared{exporter: l.Exporter, key: key, file: file}, nil
}

// Encode returns the message with which other ranks map the allocation, or nil if there is none.
func (l *Shared) Encode() []byte {
	if l.exporter == nil {
		return nil
	}
	return append([]byte{1}, l.Fabric...)
}

// Withdraw ends the export of a descriptor. A fabric handle stays valid until the memory is freed.
func (l *Shared) Withdraw() {
	if l.file != nil {
		_ = l.exporter.Withdraw(l.key, l.file) // closing a descriptor may fail
	}
}

// MapShared maps memory that a rank of the group has shared. fabric is the handle received from
// that rank. It is used only if descriptors cannot be sent. The result is as for Fetch.
func (l *Sharing) MapShared(
	ctx context.Context, rank int, key handoff.Key, fabric []byte, bytes int64, at uintptr,
) (uintptr, error) {
	if !l.Apart {
		return l.Fetch(ctx, rank, key, bytes, at)
	}
	var handle cuda.FabricHandle
	if copy(handle[:], fabric) != len(handle) || len(fabric) != len(handle) {
		return 0, fmt.Errorf("rank %d has sent a fabric handle of %d bytes, want %d", rank, len(fabric),
			len(handle))
	}
	address, err := l.GPU.MapImported(at, bytes, func() (cuda.Handle, error) {
		return l.GPU.CUDA.ImportFabric(handle)
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d by its fabric handle, which needs NVLink "+
			"between the two GPUs: %w", rank, err)
	}
	return address, nil
}
