package nccl

import (
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// kernel describes a kernel launch with its arguments.
type kernel struct {
	function cuda.Function
	// blocks is the number of blocks, and threads the number of threads per block.
	blocks, threads int
	params          cuda.Params
	// overlaps reports whether the kernel may start before its predecessor in the stream has ended.
	overlaps bool
	// local reports whether the kernel uses only this rank's memory. The arguments of a local
	// kernel contain no digest.
	local bool
	// next points to the next kernel of the same call, or is nil.
	next *kernel
}

// normKernel returns the kernel that completes a norm after the all-reduce. The all-reduce reports
// a failure in the word at address fault. The kernel then writes poison.
func (p *plan) normKernel(fault uintptr, overlaps bool) (*kernel, error) {
	c, l := p.c, kernels.Local{Norm: *p.Norm, Send: p.Recv, Recv: p.Recv, Fault: fault}
	k := &kernel{
		params: l.Params(), local: true,
		overlaps: overlaps && l.Overlaps(c.direct.exchange.Multiprocessors),
	}
	k.blocks, k.threads = l.Grid()
	var err error
	k.function, err = c.device.collectives.Function(c.device.gpu, l.Kernel(k.overlaps))
	return k, err
}

// queue launches the kernel and the kernels that follow it in the same call.
func (k *kernel) queue(gpu *cuda.Driver, on cuda.Stream) (err error) {
	for ; k != nil && err == nil; k = k.next {
		if k.overlaps {
			err = gpu.LaunchOverlapping(k.function, k.blocks, k.threads, on, &k.params)
		} else {
			err = gpu.LaunchKernel(k.function, k.blocks, k.threads, on, &k.params)
		}
	}
	return err
}
