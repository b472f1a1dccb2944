package gpu

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Properties holds the constant properties of a GPU.
type Properties struct {
	Model string
	// Major is the major compute capability.
	Major int
	// Prop holds the properties with which the memory of every segment is allocated.
	Prop cuda.AllocationProp
	// NoFabricReason is the reason why Prop does not request fabric handles, or "".
	NoFabricReason string
	// Granularity is the unit, in bytes, of segment sizes and offsets.
	Granularity int64
	// Accessors lists this GPU and the GPUs that can access its memory.
	Accessors []cuda.Device
}

func (g *GPU) queryProperties() (err error) {
	if g.Model, err = g.Name(); err != nil {
		return err
	}
	if g.Major, _, err = g.ComputeCapability(); err != nil {
		return err
	}
	if g.Prop, err = g.allocationProp(); err != nil {
		return err
	}
	if g.Granularity, err = g.CUDA.Granularity(g.Prop, true); err != nil {
		return err
	}
	g.Granularity = max(g.Granularity, minGranularity)
	g.Accessors, err = g.findAccessors()
	return err
}

// allocationProp returns the properties that NCCL's allocator uses, too, so that NCCL can register
// segments as windows.
func (g *GPU) allocationProp() (cuda.AllocationProp, error) {
	vmm, err := g.Attribute(cuda.AttributeVMMSupported)
	if err != nil {
		return cuda.AllocationProp{}, err
	}
	if vmm == 0 {
		return cuda.AllocationProp{}, fmt.Errorf("the GPU has no virtual memory management: %w",
			driver.ErrUnsupported)
	}
	prop := cuda.PinnedMemory(g.Device, cuda.HandlePosixFD, g.has(cuda.AttributeRDMAWithVMMSupported))
	fabric := prop
	fabric.RequestedHandles |= cuda.HandleFabric
	if err := g.Do(func() error { return g.tryFabric(fabric) }); err != nil {
		g.NoFabricReason = err.Error()
	} else {
		prop = fabric
	}
	return prop, nil
}

// tryFabric returns an error if memory cannot be allocated with a fabric handle, for example
// because the process has no IMEX channel.
func (g *GPU) tryFabric(prop cuda.AllocationProp) error {
	if !g.has(cuda.AttributeFabricSupported) {
		return errors.New("its GPU does not support them")
	}
	bytes, err := g.CUDA.Granularity(prop, false)
	if err != nil {
		return err
	}
	handle, err := g.CUDA.Create(bytes, prop)
	if errors.Is(err, cuda.ErrNotPermitted) {
		return fmt.Errorf("%w: does the process see an IMEX channel "+
			"(/dev/nvidia-caps-imex-channels/channel0)?", err)
	}
	if err == nil {
		g.Release(handle)
	}
	return err
}

func (g *GPU) has(attribute cuda.Attribute) bool {
	value, err := g.Attribute(attribute)
	return err == nil && value != 0
}

// minGranularity is the alignment that NCCL 2.27 requires of windows.
const minGranularity = 2 << 20

// findAccessors lists all visible GPUs, because the ranks of a process share mappings.
func (g *GPU) findAccessors() ([]cuda.Device, error) {
	n, err := g.CUDA.DeviceCount()
	if err != nil {
		return nil, err
	}
	accessors := []cuda.Device{g.Device}
	for ordinal := range n {
		peer, err := g.CUDA.Device(ordinal)
		if err != nil {
			return nil, err
		}
		if ordinal == g.Ordinal() {
			continue
		}
		if can, err := peer.CanAccessPeer(g.Device); err == nil && can {
			accessors = append(accessors, peer)
		}
	}
	return accessors, nil
}
