package nccl

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Current runs calls in the primary context of the GPU that Open would choose for localRank. The
// context may be destroyed when Current returns.
func Current(localRank int, calls func(*cuda.Driver) error) error {
	library, err := loadDriver()
	if err != nil {
		return err
	}

	device, err := chooseDevice(library, &driver.Config{LocalRank: localRank})
	if err != nil {
		return err
	}

	return gpu.Borrow(library, device, func() error { return calls(library) })
}
