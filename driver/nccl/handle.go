package nccl

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Current makes calls to other libraries, such as NCCL, on a thread in the primary context of the
// GPU that Open chooses for a rank, by its number among the ranks of its machine. If the rank's
// device is not open, the context may end with the calls.
func Current(localRank int, calls func(*cuda.Driver) error) error {
	library, err := loadDriver()
	if err != nil {
		return err
	}
	device, err := choose(library, &driver.Config{LocalRank: localRank})
	if err != nil {
		return err
	}
	return gpu.Borrow(library, device, func() error { return calls(library) })
}
