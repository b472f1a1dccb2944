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

// Exporter shares GPU memory between the ranks of one machine. One rank exports an allocation as a
// file descriptor, under a key that all ranks know. The others fetch the descriptor by this key and
// map the allocation.
type Exporter struct {
	GPU     *gpu.GPU
	Machine *shm.Machine // passes file descriptors between the ranks
}

// Export lets other ranks fetch an allocation until Withdraw is called with key and the file.
// The CUDA context must be current.
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

// Fetch maps an allocation that a rank of this machine has exported under key. The allocation is
// mapped at the address reserved or, if this is 0, at a new address.
func (e *Exporter) Fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64, reserved uintptr,
) (address uintptr, err error) {
	file, err := e.Machine.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer file.Close()
	address, err = e.GPU.MapImported(reserved, bytes, func() (cuda.Handle, error) {
		return e.GPU.CUDA.ImportFD(int(file.Fd()))
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}

	return address, nil
}

// Sharing shares GPU memory between the ranks of one group. The ranks may be on different machines
// if UseFabric is set.
type Sharing struct {
	*Exporter
	UseFabric bool // exchange fabric handles, which are valid in a whole NVLink fabric, not files
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

// Encode returns a message for the other ranks. The message is empty for the zero Shared, and
// otherwise consists of isShared and the fabric handle, if any.
func (s *Shared) Encode() []byte {
	if s.exporter == nil {
		return nil
	}

	const isShared = 1
	return append([]byte{isShared}, s.Fabric...)
}

// Withdraw ends the export of the file. A fabric handle stays valid until the memory is freed.
func (s *Shared) Withdraw() {
	if s.file != nil {
		_ = s.exporter.Withdraw(s.key, s.file) // the export ends even if closing the file fails
	}
}

// MapShared maps an allocation that a rank of the group has passed to Share. It looks up the file
// of key, or imports the handle fabric if UseFabric is set. Like Fetch, it maps the allocation at
// the address reserved, if not 0.
func (s *Sharing) MapShared(
	ctx context.Context, rank int, key handoff.Key, fabric []byte, bytes int64, reserved uintptr,
) (uintptr, error) {
	if !s.UseFabric {
		return s.Fetch(ctx, rank, key, bytes, reserved)
	}

	var handle cuda.FabricHandle
	if len(fabric) != len(handle) {
		return 0, fmt.Errorf("rank %d sent a fabric handle of %d bytes, but handles have %d", rank,
			len(fabric), len(handle))
	}

	copy(handle[:], fabric)
	address, err := s.GPU.MapImported(reserved, bytes, func() (cuda.Handle, error) {
		return s.GPU.CUDA.ImportFabric(handle)
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d by its fabric handle, which needs NVLink "+
			"between the two GPUs: %w", rank, err)
	}

	return address, nil
}
