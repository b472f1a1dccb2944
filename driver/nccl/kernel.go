package nccl

import (
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// kernel is a prepared launch.
type kernel struct {
	function cuda.Function
	// blocks and threads are the grid: how many blocks, and of how many threads.
	blocks, threads int
	params          cuda.Params
	// overlaps reports whether it may start before those ahead of it in the stream have ended.
	overlaps bool
	// local reports whether it works on this GPU alone: it meets no other rank, and has no digest.
	local bool
	// then is launched right behind it, and belongs to the same call, or is nil.
	then *kernel
}

// normKernel is what a norm has to do after the all-reduce, whose output it works on. It writes
// poison if the all-reduce has failed, as the word at fault says.
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

// queue launches the kernel and what belongs to the same call.
func (k *kernel) queue(gpu *cuda.Driver, on cuda.Stream) (err error) {
	for ; k != nil && err == nil; k = k.then {
		if k.overlaps {
			err = gpu.LaunchOverlapping(k.function, k.blocks, k.threads, on, &k.params)
		} else {
			err = gpu.LaunchKernel(k.function, k.blocks, k.threads, on, &k.params)
		}
	}
	return err
}
