package nccl

import (
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// kernel is a prepared launch.
type kernel struct {
	function cuda.Function
	grid     cuda.Dim
	block    cuda.Dim
	params   cuda.Params
	// overlaps reports whether it may start before those ahead of it in the stream have ended.
	overlaps bool
	// local reports whether it works on this GPU alone: it meets no other rank, and has no digest.
	local bool
	// then is launched right behind it, and belongs to the same call, or is nil.
	then *kernel
}

// normKernel is what a norm has to do after the all-reduce, whose output it works on. It writes
// marks if the all-reduce has failed, as the word at fault says.
func (p *plan) normKernel(fault uintptr, overlaps bool) (*kernel, error) {
	c, l := p.c, kernels.Local{Norm: *p.Norm, Send: p.Recv, Recv: p.Recv, Fault: fault}
	blocks, threads := l.Grid()
	k := &kernel{
		grid: cuda.Dim{X: uint32(blocks)}, block: cuda.Dim{X: uint32(threads)}, params: l.Params(),
		overlaps: overlaps && l.Overlaps(c.direct.exchange.Multiprocessors), local: true,
	}
	var err error
	k.function, err = c.device.collectives.Function(c.device.gpu, l.Kernel(k.overlaps))
	return k, err
}

// queue launches the kernel and what belongs to the same call.
func (k *kernel) queue(gpu *cuda.Driver, on cuda.Stream) (err error) {
	for ; k != nil && err == nil; k = k.then {
		if k.overlaps {
			err = gpu.LaunchOverlapping(k.function, k.grid, k.block, on, &k.params)
		} else {
			err = gpu.LaunchKernel(k.function, k.grid, k.block, 0, on, &k.params)
		}
	}
	return err
}
