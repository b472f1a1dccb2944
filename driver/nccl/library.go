package nccl

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/mps"
)

func loadDriver() (*cuda.Driver, error) {
	if err := setDefaults(); err != nil {
		return nil, err
	}

	return cuda.Load()
}

// setDefaults sets environment variables of CUDA and NCCL once. It must return before any rank of
// the process calls CUDA or NCCL, because libc's environment has no lock.
//
// NCCL_RUNTIME_CONNECT=0 makes NCCL connect ranks when a communicator is created. The first
// collective would otherwise wait for missing ranks.
//
// CUDA_DEVICE_MAX_CONNECTIONS=32 selects the largest number of hardware queues. A stream that waits
// for a message blocks the other streams in its queue: on one H100 with 4 ranks, random programs
// hung with CUDA's default. MPS clients share 96 queues.
var setDefaults = sync.OnceValue(func() error {
	err := setDefault("NCCL_RUNTIME_CONNECT", "0")
	if mps.IsRunning(os.Getenv) {
		return err
	}

	return errors.Join(err, setDefault("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
})

func setDefault(name, value string) error {
	if os.Getenv(name) != "" {
		return nil
	}

	return dl.Setenv(name, value)
}

func withAdvice(err error) error {
	return fmt.Errorf("%w: %w; symmem doctor reports what this machine lacks, and the backend "+
		"\"host\" needs no GPU", driver.ErrUnsupported, err)
}
