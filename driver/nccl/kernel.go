package nccl

import (
	"symmem/driver"
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

// inPieces is the kernel once for each piece of a launch. The pieces have one digest, and numbers
// of their own as calls have: ranks that have come to the same call have the same pieces.
func (k *kernel) inPieces(of *kernels.Launch, at *kernels.Places) *kernel {
	first := k.then
	for i := of.Pieces - 1; i >= 0; i-- {
		one := *k
		one.params, one.then = of.Params(at, i), first
		first = &one
	}
	return first
}

// normKernel is what a norm has to do after the all-reduce, whose output it works on, and the name
// of the kernel that does it. It writes marks if the all-reduce has failed.
func normKernel(
	call *driver.Call, exchange uintptr, multiprocessors int, overlaps bool,
) (k *kernel, name string) {
	l := kernels.Local{
		Norm: *call.Norm, Send: call.Recv, Recv: call.Recv, Fault: exchange + kernels.FaultOffset,
	}
	blocks, threads := l.Grid()
	overlaps = overlaps && l.Overlaps(multiprocessors)
	return &kernel{
		grid: cuda.Dim{X: uint32(blocks)}, block: cuda.Dim{X: uint32(threads)}, params: l.Params(),
		overlaps: overlaps, local: true,
	}, l.Kernel(overlaps)
}

// queue launches the kernel and what belongs to the same call.
func (k *kernel) queue(gpu *cuda.Driver, on cuda.Stream) error {
	for ; k != nil; k = k.then {
		if err := k.launch(gpu, on); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) launch(gpu *cuda.Driver, on cuda.Stream) error {
	if k.overlaps {
		return gpu.LaunchOverlapping(k.function, k.grid, k.block, on, &k.params)
	}
	return gpu.LaunchKernel(k.function, k.grid, k.block, 0, on, &k.params)
}
