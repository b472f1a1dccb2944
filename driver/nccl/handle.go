package nccl

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Current makes calls of other libraries, such as NCCL, on a thread on which the primary context
// of the GPU is current that Open chooses for a rank: by its number among the ranks of its machine.
// While that rank's device is open the context is the device's; else it ends with the calls.
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
