package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// Permute queues a kernel on the stream.
func (d *Device) Permute(s driver.Stream, p *driver.Permutation) error {
	return d.queuePermutation(s, p, false)
}

// Unpermute is like Permute.
func (d *Device) Unpermute(s driver.Stream, p *driver.Permutation) error {
	return d.queuePermutation(s, p, true)
}

func (d *Device) queuePermutation(s driver.Stream, p *driver.Permutation, returns bool) error {
	own, err := d.streams.Lookup(s)
	if err != nil {
		return err
	}
	step, err := kernels.Permute(p, returns, d.gpu.Multiprocessors)
	if err != nil {
		return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	}
	// Groups with a direct path have loaded the kernels.
	if err := d.gpu.Do(func() error { return d.collectives.Load(d.gpu) }); err != nil {
		return err
	}
	k, err := linkKernels(d, []kernels.Step{step})
	if err != nil {
		return err
	}
	return own.Queue(func(stream cuda.Stream) error { return k.queue(d.gpu.CUDA, stream) })
}
