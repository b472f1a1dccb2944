package bench

import (
	"symmem"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// program is code of our own on the current GPU.
type program struct {
	gpu    *cuda.Driver
	module cuda.Module
	// overlaps tells that kernels may start before those ahead of them have ended, as those of the
	// direct path do.
	overlaps        bool
	multiprocessors int
}

// loadProgram loads the object for the GPU of a rank, by its number on its machine.
func loadProgram(
	gpu *cuda.Driver, localRank int, object func(major, minor int) ([]byte, error),
) (*program, error) {
	n, err := gpu.DeviceCount()
	if err != nil {
		return nil, err
	}
	device, err := gpu.Device(localRank % n)
	if err != nil {
		return nil, err
	}
	major, minor, err := device.ComputeCapability()
	if err != nil {
		return nil, err
	}
	p := &program{gpu: gpu}
	if p.multiprocessors, err = device.Attribute(cuda.AttributeMultiprocessorCount); err != nil {
		return nil, err
	}
	if p.overlaps, err = device.LaunchesOverlap(); err != nil {
		return nil, err
	}
	p.overlaps = p.overlaps && kernels.Wait(major)
	code, err := object(major, minor)
	if err != nil {
		return nil, err
	}
	p.module, err = gpu.ModuleLoadData(code)
	return p, err
}

// queue launches a kernel.
func (p *program) queue(
	f cuda.Function, blocks, threads int, on *symmem.Stream, params *cuda.Params,
) error {
	grid, block := cuda.Dim{X: uint32(blocks)}, cuda.Dim{X: uint32(threads)}
	if p.overlaps {
		return p.gpu.LaunchOverlapping(f, grid, block, cuda.Stream(on.Handle()), params)
	}
	return p.gpu.LaunchKernel(f, grid, block, 0, cuda.Stream(on.Handle()), params)
}

func (p *program) close() error { return p.gpu.ModuleUnload(p.module) }
