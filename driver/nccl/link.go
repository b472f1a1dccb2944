package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// checkLinks returns an error unless NVLink connects this GPU with those of all members on the same
// physical machine, in both directions. Direct kernels over PCIe would work on most machines, but
// their lines of 128 bytes must arrive whole, which NVLink guarantees and PCIe does not. Memory of
// another physical machine can be mapped over NVLink only, so that case needs no check. Physical
// machines are identified by the boot ID of the kernel, since NCCL_HOSTID can change machine names.
func checkLinks(g *gpu.GPU, self *member, members []*member) error {
	for _, m := range members {
		if m.GPU == self.GPU || m.Boot != self.Boot {
			continue
		}
		peer, err := visibleDevice(g, m.GPU)
		if err != nil {
			return err
		}
		for _, way := range [2][2]cuda.Device{{g.Device, peer}, {peer, g.Device}} {
			if can, err := way[0].CanAccessPeer(way[1]); err != nil || !can {
				return fmt.Errorf("GPU %d cannot access the memory of GPU %d (nvidia-smi topo -p2p r): %w",
					way[0].Ordinal(), way[1].Ordinal(), driver.ErrUnsupported)
			}
			native, err := way[0].P2PAttribute(cuda.P2PNativeAtomicSupported, way[1])
			if err != nil || native == 0 {
				return fmt.Errorf("GPUs %d and %d are not connected by NVLink (nvidia-smi topo -m): %w",
					way[0].Ordinal(), way[1].Ordinal(), driver.ErrUnsupported)
			}
		}
	}
	return nil
}

// visibleDevice returns the visible GPU with a UUID.
func visibleDevice(g *gpu.GPU, uuid string) (cuda.Device, error) {
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
	return cuda.Device{}, fmt.Errorf("this process does not see GPU %s of another rank, so their "+
		"link is unknown: make all GPUs of the group visible to every rank (CUDA_VISIBLE_DEVICES): %w",
		uuid, driver.ErrUnsupported)
}
