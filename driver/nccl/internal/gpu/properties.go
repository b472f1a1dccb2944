package gpu

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Properties holds the constant properties of a GPU. Segments are allocations of GPU memory that
// other ranks can map. Ranks on the same machine can do so through a file descriptor. Ranks on
// other machines need a fabric handle, which not every machine supports.
type Properties struct {
	Model           string              // for example "NVIDIA H200"
	Major           int                 // major version of the compute capability
	Multiprocessors int                 // number of the GPU's multiprocessors
	SegmentProp     cuda.AllocationProp // how segments are allocated
	NoFabricReason  string              // why segments have no fabric handles, or ""
	Granularity     int64               // unit of segment sizes and offsets, in bytes
	Accessors       []cuda.Device       // this GPU and all visible GPUs that can access its memory
}

// queryProperties sets g.Properties.
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

	g.Granularity = max(granularity, minGranularity)
	g.Accessors, err = g.findAccessors()
	return err
}

// minGranularity is the alignment in bytes that NCCL 2.27 requires of windows (registered memory).
const minGranularity = 2 << 20

// setSegmentProp sets SegmentProp and NoFabricReason. Segments have the same properties as the
// memory of NCCL's allocator, so that NCCL can register them.
func (g *GPU) setSegmentProp() error {
	vmmSupport, err := g.Attribute(cuda.AttributeVMMSupported)
	if err != nil {
		return err
	}

	if vmmSupport == 0 {
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

// checkFabric returns an error if memory with a fabric handle cannot be allocated.
func (g *GPU) checkFabric(prop cuda.AllocationProp) error {
	if !g.hasAttribute(cuda.AttributeFabricSupported) {
		return errors.New("the GPU does not support fabric handles")
	}

	const recommended = false // the minimum granularity, because the memory is only a test
	bytes, err := g.CUDA.Granularity(prop, recommended)
	if err != nil {
		return err
	}

	handle, err := g.CUDA.Create(bytes, prop)
	if errors.Is(err, cuda.ErrNotPermitted) {
		return fmt.Errorf("%w: does the process see an IMEX channel "+
			"(/dev/nvidia-caps-imex-channels/channel0)?", err)
	}

	if err != nil {
		return err
	}

	g.Release(handle) // frees the memory, which is not mapped
	return nil
}

// hasAttribute reports whether the GPU has an attribute that is a yes or no.
func (g *GPU) hasAttribute(attribute cuda.Attribute) bool {
	value, err := g.Attribute(attribute)
	return err == nil && value != 0 // a CUDA version may not know the attribute
}

// findAccessors returns this GPU and all visible GPUs that can access its memory. It includes the
// GPUs of all ranks, because the ranks of a process share mappings.
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
		isKnown := err == nil // a GPU that cannot be asked is left out
		if isKnown && canAccess {
			accessors = append(accessors, peer)
		}
	}

	return accessors, nil
}
