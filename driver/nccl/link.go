package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// linked returns an error unless this GPU reaches those of all members on this box over NVLink, in
// both directions. Kernels over PCIe would work on most machines; but the lines of the kernels must
// arrive whole, which NVLink promises and PCIe does not. Nothing but NVLink reaches the memory of
// another box, so there the mapping itself will tell. A box is a boot of a kernel: what machines
// are called says nothing.
func linked(g *gpu.GPU, self *member, members []*member) error {
	for _, m := range members {
		if m.GPU == self.GPU || m.Boot != self.Boot {
			continue
		}
		peer, err := visible(g, m.GPU)
		if err != nil {
			return err
		}
		for _, way := range [2][2]cuda.Device{{g.Device, peer}, {peer, g.Device}} {
			if can, err := way[0].CanAccessPeer(way[1]); err != nil || !can {
				return fmt.Errorf("GPU %d cannot reach the memory of GPU %d (nvidia-smi topo -p2p r): %w",
					way[0].Ordinal(), way[1].Ordinal(), driver.ErrUnsupported)
			}
			native, err := way[0].P2PAttribute(cuda.P2PNativeAtomicSupported, way[1])
			if err != nil || native == 0 {
				return fmt.Errorf("GPUs %d and %d are not joined by NVLink (nvidia-smi topo -m): %w",
					way[0].Ordinal(), way[1].Ordinal(), driver.ErrUnsupported)
			}
		}
	}
	return nil
}

// visible finds a GPU by its unique number.
func visible(g *gpu.GPU, uuid string) (cuda.Device, error) {
	n, err := g.CUDA.DeviceCount()
	if err != nil {
		return cuda.Device{}, err
	}
	for ordinal := range n {
		device, err := g.CUDA.Device(ordinal)
		if err != nil {
			return cuda.Device{}, err
		}
		if is, err := device.UUID(); err == nil && is == uuid {
			return device, nil
		}
	}
	return cuda.Device{}, fmt.Errorf("this process does not see GPU %s of another rank, and so not "+
		"how the two are joined: show every rank all GPUs of the group (CUDA_VISIBLE_DEVICES): %w",
		uuid, driver.ErrUnsupported)
}
