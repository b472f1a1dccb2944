package gpu

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Properties describes a GPU and its segments. A segment is an allocation that other processes can
// import: by file descriptor on the same machine, or by fabric handle in the same NVLink fabric.
type Properties struct {
	Model           string              // for example "NVIDIA H200"
	Major           int                 // major compute capability, 9 for an H200
	Multiprocessors int                 // number of multiprocessors
	SegmentProp     cuda.AllocationProp // allocation properties of segments
	NoFabricReason  string              // why segments have no fabric handles; empty if they do
	Granularity     int64               // segment sizes and offsets are multiples of it, in bytes
	Accessors       []cuda.Device       // this GPU and the visible GPUs that can access its memory
}

func (g *GPU) queryProperties() (err error) {
	if g.Model, err = g.Name(); err != nil {
		return err
	}

	if g.Major, _, err = g.ComputeCapability(); err != nil {
		return err
	}

	if g.Multiprocessors, err = g.Attribute(cuda.AttributeMultiprocessorCount); err != nil {
		return err
	}

	if err := g.setSegmentProp(); err != nil {
		return err
	}

	const recommended = true
	granularity, err := g.CUDA.Granularity(g.SegmentProp, recommended)
	if err != nil {
		return err
	}

	const ncclAlignment = 2 << 20 // bytes, required by NCCL 2.27 for registered memory
	g.Granularity = max(granularity, ncclAlignment)
	g.Accessors, err = g.findAccessors()
	return err
}

// setSegmentProp uses the same properties as NCCL's allocator, so that NCCL can register segments.
func (g *GPU) setSegmentProp() error {
	vmmSupported, err := g.Attribute(cuda.AttributeVMMSupported)
	if err != nil {
		return err
	}

	if vmmSupported == 0 {
		return fmt.Errorf("the GPU has no virtual memory management: %w", driver.ErrUnsupported)
	}

	canUseRDMA := g.hasAttribute(cuda.AttributeRDMAWithVMMSupported)
	prop := cuda.PinnedMemory(g.Device, cuda.HandlePosixFD, canUseRDMA)
	fabricProp := prop
	fabricProp.RequestedHandles |= cuda.HandleFabric
	fabricErr := g.Do(func() error { return g.checkFabric(fabricProp) })
	if fabricErr == nil {
		g.SegmentProp = fabricProp
		return nil
	}

	g.SegmentProp = prop
	g.NoFabricReason = fabricErr.Error()
	return nil
}

// checkFabric returns an error if the GPU cannot allocate memory with a fabric handle. prop must
// request the handle, and the context must be current.
func (g *GPU) checkFabric(prop cuda.AllocationProp) error {
	if !g.hasAttribute(cuda.AttributeFabricSupported) {
		return errors.New("the GPU does not support fabric handles")
	}

	const recommended = false
	minBytes, err := g.CUDA.Granularity(prop, recommended)
	if err != nil {
		return err
	}

	handle, err := g.CUDA.Create(minBytes, prop)
	if errors.Is(err, cuda.ErrNotPermitted) {
		return fmt.Errorf("%w: does the process see an IMEX channel "+
			"(/dev/nvidia-caps-imex-channels/channel0)?", err)
	}

	if err != nil {
		return err
	}

	g.Release(handle)
	return nil
}

// hasAttribute returns false for an attribute that the driver does not know.
func (g *GPU) hasAttribute(attribute cuda.Attribute) bool {
	value, err := g.Attribute(attribute)
	return err == nil && value != 0
}

// findAccessors omits a GPU if CUDA cannot check its access.
func (g *GPU) findAccessors() ([]cuda.Device, error) {
	gpuCount, err := g.CUDA.DeviceCount()
	if err != nil {
		return nil, err
	}

	accessors := []cuda.Device{g.Device}
	for ordinal := range gpuCount {
		peer, err := g.CUDA.Device(ordinal)
		if err != nil {
			return nil, err
		}

		if ordinal == g.Ordinal() {
			continue
		}

		canAccess, err := peer.CanAccessPeer(g.Device)
		if err == nil && canAccess {
			accessors = append(accessors, peer)
		}
	}

	return accessors, nil
}
