package gpu

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// Properties holds the constant properties of a GPU.
type Properties struct {
	// Model is the vendor's name for the GPU.
	Model string
	// Major is the GPU's compute capability.
	Major int
	// Prop are the properties of every segment.
	Prop cuda.AllocationProp
	// NoFabric says why Prop asks for no fabric handles; empty if it does.
	NoFabric string
	// Granularity is the unit of sizes and offsets of segments, in bytes.
	Granularity int64
	// Reach lists the GPUs that get access to this one's memory: itself and its peers.
	Reach []cuda.Device
}

// describe asks the GPU for its properties.
func (g *GPU) describe() (err error) {
	if g.Model, err = g.Name(); err != nil {
		return err
	}
	if g.Major, _, err = g.ComputeCapability(); err != nil {
		return err
	}
	if g.Prop, err = g.properties(); err != nil {
		return err
	}
	if g.Granularity, err = g.CUDA.Granularity(g.Prop, true); err != nil {
		return err
	}
	g.Granularity = max(g.Granularity, minGranularity)
	g.Reach, err = g.peersOfMemory()
	return err
}

// properties are those of every segment: NCCL's own allocator asks for the same, so what it makes
// of a window works on ours.
func (g *GPU) properties() (cuda.AllocationProp, error) {
	vmm, err := g.Attribute(cuda.AttributeVMMSupported)
	if err != nil {
		return cuda.AllocationProp{}, err
	}
	if vmm == 0 {
		return cuda.AllocationProp{}, fmt.Errorf("the GPU has no virtual memory management: %w",
			driver.ErrUnsupported)
	}
	prop := cuda.PinnedMemory(g.Device, cuda.HandlePosixFD, g.has(cuda.AttributeRDMAWithVMMSupported))
	with := prop
	with.RequestedHandles |= cuda.HandleFabric
	if err := g.Do(func() error { return g.tryFabric(with) }); err != nil {
		g.NoFabric = err.Error()
	} else {
		prop = with
	}
	return prop, nil
}

// tryFabric makes memory with a fabric handle. A GPU that knows them refuses them all the same to a
// process without an IMEX channel.
func (g *GPU) tryFabric(prop cuda.AllocationProp) error {
	if !g.has(cuda.AttributeFabricSupported) {
		return errors.New("its GPU does not know them")
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

// has reports whether the GPU has what an attribute asks for. One that does not know it has not.
func (g *GPU) has(attribute cuda.Attribute) bool {
	value, err := g.Attribute(attribute)
	return err == nil && value != 0
}

// minGranularity is the unit that windows need: NCCL 2.27 wants multiples of 2 MiB.
const minGranularity = 2 << 20

// peersOfMemory lists the GPUs in this process's view that can reach this one's memory. Ranks of
// one process read each other's memory in place; other processes map it anew.
func (g *GPU) peersOfMemory() ([]cuda.Device, error) {
	n, err := g.CUDA.DeviceCount()
	if err != nil {
		return nil, err
	}
	reach := []cuda.Device{g.Device}
	for ordinal := range n {
		peer, err := g.CUDA.Device(ordinal)
		if err != nil {
			return nil, err
		}
		if ordinal == g.Ordinal() {
			continue
		}
		if can, err := peer.CanAccessPeer(g.Device); err == nil && can {
			reach = append(reach, peer)
		}
	}
	return reach, nil
}
