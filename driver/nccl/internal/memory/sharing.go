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

// Exporter passes GPU memory between the ranks of one machine. One rank exports an allocation as a
// file, under a key that all ranks know. The others fetch the file by this key and map the
// allocation.
type Exporter struct {
	GPU     *gpu.GPU
	Machine *shm.Machine // passes file descriptors between the ranks
}

// Export lets other ranks fetch an allocation until the returned file is passed to Withdraw. The
// CUDA context must be current.
func (e *Exporter) Export(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := e.GPU.CUDA.ExportFD(handle)
	if err != nil {
		return nil, err
	}

	file := os.NewFile(uintptr(fd), "device memory")
	e.Machine.Export(key, file)
	return file, nil
}

// Withdraw ends an export and closes the file.
func (e *Exporter) Withdraw(key handoff.Key, file *os.File) error {
	e.Machine.Withdraw(key)
	return file.Close()
}

// Fetch maps an allocation that a rank of this machine has exported under key. It maps at
// reservedAddress, or at a new address if that is 0.
func (e *Exporter) Fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64, reservedAddress uintptr,
) (address uintptr, err error) {
	file, err := e.Machine.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer file.Close()
	address, err = e.GPU.MapImported(reservedAddress, bytes, func() (cuda.Handle, error) {
		return e.GPU.CUDA.ImportFD(int(file.Fd()))
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}

	return address, nil
}

// Sharing passes GPU memory between the ranks of one group.
type Sharing struct {
	*Exporter
	UseFabric bool // pass NVLink fabric handles instead of files, also to other machines
}

// Shared is an allocation that other ranks can map, by either a file or a fabric handle. The zero
// Shared has neither.
type Shared struct {
	exporter *Exporter // nil in the zero Shared
	key      handoff.Key
	file     *os.File // exported under key, or nil
	Fabric   []byte   // fabric handle, or nil
}

// Share shares an allocation with the other ranks. The CUDA context must be current.
func (s *Sharing) Share(key handoff.Key, handle cuda.Handle) (Shared, error) {
	if s.UseFabric {
		fabricHandle, err := s.GPU.CUDA.ExportFabric(handle)
		if err != nil {
			return Shared{}, err
		}

		return Shared{exporter: s.Exporter, Fabric: fabricHandle[:]}, nil
	}

	file, err := s.Export(key, handle)
	if err != nil {
		return Shared{}, err
	}

	return Shared{exporter: s.Exporter, key: key, file: file}, nil
}

// Encode returns a message for the other ranks: isShared, followed by the fabric handle, if any.
// The message of the zero Shared is empty.
func (s *Shared) Encode() []byte {
	if s.exporter == nil {
		return nil
	}

	const isShared = 1
	return append([]byte{isShared}, s.Fabric...)
}

// Withdraw closes the file, if any. A fabric handle stays valid until the memory is freed.
func (s *Shared) Withdraw() {
	if s.file != nil {
		_ = s.exporter.Withdraw(s.key, s.file) // the export ends even if closing the file fails
	}
}

// MapShared maps an allocation that a rank of the group has passed to Share. It is like Fetch, but
// if UseFabric is set, it imports fabricHandle and ignores key.
func (s *Sharing) MapShared(
	ctx context.Context, rank int, key handoff.Key, fabricHandle []byte, bytes int64,
	reservedAddress uintptr,
) (uintptr, error) {
	if !s.UseFabric {
		return s.Fetch(ctx, rank, key, bytes, reservedAddress)
	}

	var handle cuda.FabricHandle
	if len(fabricHandle) != len(handle) {
		return 0, fmt.Errorf("rank %d sent a fabric handle of %d bytes, but handles have %d", rank,
			len(fabricHandle), len(handle))
	}

	copy(handle[:], fabricHandle)
	address, err := s.GPU.MapImported(reservedAddress, bytes, func() (cuda.Handle, error) {
		return s.GPU.CUDA.ImportFabric(handle)
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d by its fabric handle, which needs NVLink "+
			"between the two GPUs: %w", rank, err)
	}

	return address, nil
}
