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

// Exporter shares GPU memory between the ranks of one machine. The owner exports an allocation as a
// file, under a key that all ranks know. The other ranks fetch the file and map it.
type Exporter struct {
	GPU     *gpu.GPU
	Machine *shm.Machine // passes the files between the ranks
}

// Export lets other ranks fetch an allocation by key until the returned file is passed to Withdraw.
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

// Withdraw ends the export of a file that Export returned.
func (e *Exporter) Withdraw(key handoff.Key, file *os.File) error {
	e.Machine.Withdraw(key)
	return file.Close()
}

// Fetch maps an allocation that a rank of this machine has exported under key. If reserved is not
// 0, Fetch maps the allocation at this address.
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

// Sharing shares GPU memory between the ranks of one group, by files or by fabric handles. A fabric
// handle is a byte string that also works on other machines of the same NVLink fabric.
type Sharing struct {
	*Exporter
	UseFabric bool
}

// Shared is an allocation that other ranks of a group can map. If it is zero, nothing is shared.
type Shared struct {
	exporter *Exporter
	key      handoff.Key // of file
	file     *os.File    // nil with UseFabric
	Fabric   []byte      // fabric handle; nil without UseFabric
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

// Encode returns a message for the other ranks: a byte 1 and Fabric, or nothing for the zero
// Shared.
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
		_ = s.exporter.Withdraw(s.key, s.file) // only Close can fail, and the export has ended
	}
}

// MapShared maps an allocation that a rank of the group has passed to Share. It uses the handle
// fabric if UseFabric is set, and key otherwise. The address is chosen as in Fetch.
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
