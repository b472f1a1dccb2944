package nccl

import (
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// kernel describes a launch of a kernel, with all its arguments.
type kernel struct {
	function cuda.Function
	// blocks is the number of blocks, and threads the number of threads in each.
	blocks, threads int
	params          cuda.Params
	// overlaps reports whether it may start before its predecessor in the stream has ended.
	overlaps bool
	// local reports whether it does not communicate with other ranks. Its arguments have no digest.
	local bool
	// next is the next kernel of the same call, or nil.
	next *kernel
}

// normKernel returns the kernel that runs after the all-reduce of a norm, on its output. It writes
// poison if the word at fault reports that the all-reduce has failed.
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

// queue launches the kernel and those after it in the same call.
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
