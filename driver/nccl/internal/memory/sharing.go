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

// A rank can share an allocation of GPU memory with other ranks. For example, rank 0 shares 2 MiB
// with rank 1. There are two ways:
//
//   - By a file, if both ranks are on one machine: rank 0 exports the memory as a file, under a key
//     that both ranks know. Rank 1 fetches the file by the key, and maps the memory at an address.
//   - By a fabric handle: these are bytes that rank 0 sends to rank 1. Rank 1 maps the memory by
//     them. This also works between machines whose GPUs form a fabric.

// Exporter shares GPU memory between ranks of one machine, by files.
type Exporter struct {
	GPU     *gpu.GPU
	Machine *shm.Machine // passes the files between the ranks
}

// Export lets other ranks fetch an allocation by key, until Withdraw. It returns the file for
// Withdraw. The CUDA context must be current.
func (e *Exporter) Export(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := e.GPU.CUDA.ExportFD(handle)
	if err != nil {
		return nil, err
	}

	file := os.NewFile(uintptr(fd), "device memory")
	e.Machine.Export(key, file)
	return file, nil
}

// Withdraw ends the export of a file that Export returned.
func (e *Exporter) Withdraw(key handoff.Key, file *os.File) error {
	e.Machine.Withdraw(key)
	return file.Close()
}

// Fetch maps the memory that a rank of this machine has exported by key, and returns its address.
// This is the address reserved or, if that is 0, a new one. bytes is the size of the memory.
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

// Sharing shares GPU memory between the ranks of one group.
type Sharing struct {
	*Exporter
	UseFabric bool // share by fabric handles instead of files
}

// Shared is an allocation that other ranks of a group can map. The zero value stands for none.
type Shared struct {
	exporter *Exporter
	key      handoff.Key // for file
	file     *os.File    // nil if ranks use the fabric handle
	Fabric   []byte      // the fabric handle, or nil if ranks fetch the file
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

// Encode returns a message for the other ranks. It is empty for the zero Shared. Otherwise, it
// consists of a byte 1 and the fabric handle, if there is one.
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
		_ = s.exporter.Withdraw(s.key, s.file)
	}
}

// MapShared is Fetch for memory that a rank of the group has passed to Share. If UseFabric is set,
// it maps the memory by its fabric handle, and ignores key. Otherwise, it ignores fabric.
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
