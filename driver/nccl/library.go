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

// loadDriver loads CUDA's driver library, after setting defaults for environment variables of CUDA
// and NCCL.
func loadDriver() (*cuda.Driver, error) {
	if err := setDefaults(); err != nil {
		return nil, err
	}
	return cuda.Load()
}

// setDefaults sets environment variables of CUDA and NCCL once. It must return before any rank of
// the process calls a library that reads them, because libc's environment has no lock.
//
// NCCL_RUNTIME_CONNECT=0 makes NCCL connect ranks when a communicator is created. Otherwise newer
// versions connect them at the first collective, and that launch would wait for missing ranks.
//
// CUDA_DEVICE_MAX_CONNECTIONS=32 gives the process the largest number of hardware queues. Streams
// that share a queue wait for each other, so a stream that waits for a message could block work
// that the sender waits for. On one H100 with 4 ranks, random programs of messages on 3 streams
// hung with CUDA's default but not with 32. Under MPS, whose clients share 96 queues, the variable
// is left as it is.
var setDefaults = sync.OnceValue(func() error {
	err := setDefault("NCCL_RUNTIME_CONNECT", "0")
	if mps.Running(os.Getenv) {
		return err
	}
	return errors.Join(err, setDefault("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
})

// setDefault sets an environment variable unless the user has set it.
func setDefault(name, value string) error {
	if os.Getenv(name) != "" {
		return nil
	}
	return dl.Setenv(name, value)
}

// withAdvice wraps an error that occurs if the machine has no usable GPU, and adds advice.
func withAdvice(err error) error {
	return fmt.Errorf("%w: %w; symmem doctor reports what this machine lacks, and the backend "+
		"\"host\" needs no GPU", driver.ErrUnsupported, err)
}
