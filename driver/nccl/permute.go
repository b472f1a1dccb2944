package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// permuter queues the kernels of permutations.
type permuter struct {
	gpu     *gpu.GPU
	code    *gpu.Code
	streams *stream.Streams
}

func (k permuter) queue(s driver.Stream, p *driver.Permutation, returns bool) error {
	own, err := k.streams.Lookup(s)
	if err != nil {
		return err
	}

	step, err := kernels.Permute(p, returns, k.gpu.Multiprocessors)
	if err != nil {
		return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	}

	// Groups with a direct path have loaded the kernels.
	if err := k.gpu.Do(func() error { return k.code.Load(k.gpu) }); err != nil {
		return err
	}

	function, err := k.code.Function(k.gpu, step.Kernel)
	if err != nil {
		return err
	}

	return stream.Queue(own, func(s cuda.Stream) error {
		return k.gpu.CUDA.LaunchKernel(function, step.Blocks, step.Threads, s, &step.Params)
	})
}
