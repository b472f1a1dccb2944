package nccl

import (
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// kernel is a kernel launch of a call on the direct path (symmem's own kernels).
type kernel struct {
	kernels.Step
	function cuda.Function
	next     *kernel
}

// linkKernels looks up and links the kernels of all steps, and returns the first. There must be at
// least one step.
func linkKernels(d *Device, steps []kernels.Step) (first *kernel, err error) {
	for i := len(steps) - 1; i >= 0; i-- {
		first = &kernel{Step: steps[i], next: first}
		if first.function, err = d.collectives.Function(d.gpu, first.Kernel); err != nil {
			return nil, err
		}
	}

	return first, nil
}

func (k *kernel) queue(gpu *cuda.Driver, s cuda.Stream) (err error) {
	for ; k != nil && err == nil; k = k.next {
		if k.CanOverlap {
			err = gpu.LaunchOverlapping(k.function, k.Blocks, k.Threads, s, &k.Params)
		} else {
			err = gpu.LaunchKernel(k.function, k.Blocks, k.Threads, s, &k.Params)
		}
	}

	return err
}
