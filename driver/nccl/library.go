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

// loadDriver opens CUDA, with the variables set that it and NCCL read.
func loadDriver() (*cuda.Driver, error) {
	if err := setDefaults(); err != nil {
		return nil, err
	}
	return cuda.Load()
}

// setDefaults sets what CUDA and NCCL read, once, before any rank of the process is in a library
// that reads variables: libc's environment has no lock.
//
// NCCL makes connections when a communicator is made: made at the first collective, as newer
// versions do, they would keep a launch waiting for ranks that have not come. CUDA gets as many
// queues to the GPU as it can have: streams that share one wait for each other, so a stream that
// waits for a message may hold up what its sender waits for. On one H100 with 4 ranks, random
// programs of messages on 3 streams hung with CUDA's own number, and did not with 32. Under MPS,
// whose clients have 96 queues together, it is left to the user.
var setDefaults = sync.OnceValue(func() error {
	err := setDefault("NCCL_RUNTIME_CONNECT", "0")
	if mps.Running(os.Getenv) {
		return err
	}
	return errors.Join(err, setDefault("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
})

// setDefault sets a variable unless the user has.
func setDefault(name, value string) error {
	if os.Getenv(name) != "" {
		return nil
	}
	return dl.Setenv(name, value)
}

// withAdvice says what to do where this machine has no GPU, or lacks what takes one.
func withAdvice(err error) error {
	return fmt.Errorf("%w: %w; symmem doctor says what this machine lacks, and the backend \"host\" "+
		"needs no GPU", driver.ErrUnsupported, err)
}
