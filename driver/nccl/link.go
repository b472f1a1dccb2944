package nccl

import (
	"fmt"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// checkLinks returns an error unless NVLink connects this GPU with the GPUs of all members on the
// same physical machine (by boot ID). symmem's kernels write lines of 128 bytes that must arrive as
// a whole, which PCIe does not guarantee. Memory on other machines can only be mapped over NVLink.
// The error does not wrap driver.ErrUnsupported, because the caller's error does.
func checkLinks(g *gpu.GPU, self *member, members []*member) error {
	for _, m := range members {
		if m.GPUID == self.GPUID || m.BootID != self.BootID {
			continue
		}

		peer, err := visibleDevice(g, m.GPUID)
		if err != nil {
			return err
		}

		for _, pair := range [2][2]cuda.Device{{g.Device, peer}, {peer, g.Device}} {
			src, dst := pair[0], pair[1]
			if can, err := src.CanAccessPeer(dst); err != nil || !can {
				return fmt.Errorf("GPU %d cannot access the memory of GPU %d (see nvidia-smi topo -p2p r)",
					src.Ordinal(), dst.Ordinal())
			}

			native, err := src.P2PAttribute(cuda.P2PNativeAtomicSupported, dst)
			if err != nil || native == 0 {
				return fmt.Errorf("GPUs %d and %d are not connected by NVLink (see nvidia-smi topo -m)",
					src.Ordinal(), dst.Ordinal())
			}
		}
	}

	return nil
}

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

		if id, err := device.UUID(); err == nil && id == uuid {
			return device, nil
		}
	}

	return cuda.Device{}, fmt.Errorf("this process cannot see GPU %s of another rank, so the link "+
		"to it is unknown: make all GPUs of the group visible to every rank (CUDA_VISIBLE_DEVICES)", uuid)
}
