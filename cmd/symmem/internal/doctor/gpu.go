package doctor

import (
	"errors"
	"fmt"
	"slices"

	"symmem/internal/cuda"
)

// GPU describes a visible device. A bool is false if the driver does not know the attribute.
type GPU struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	PCI     string `json:"pci"`
	Memory  int64  `json:"memory"`
	// Major and Minor are the parts of the compute capability.
	Major int `json:"major"`
	Minor int `json:"minor"`
	// VMM is set if the GPU supports virtual memory management.
	VMM bool `json:"vmm"`
	// PosixFD is set if processes can share memory through file descriptors.
	PosixFD bool `json:"posix_fd"`
	// Fabric is set if processes can share memory through fabric handles.
	Fabric bool `json:"fabric"`
	// RDMA is set if network cards can access the memory.
	RDMA bool `json:"rdma"`
	// Multicast is only reported; symmem never uses it.
	Multicast bool `json:"multicast"`
	// Granularity is the number of bytes of which segment sizes are multiples, or 0 if unknown.
	Granularity int64 `json:"granularity"`
	// Exclusive is set if only one process may use the GPU.
	Exclusive bool `json:"exclusive,omitempty"`
	// Prohibited is set if no process may use the GPU.
	Prohibited bool `json:"prohibited,omitempty"`
}

const (
	modeProhibited = 2
	modeExclusive  = 3
)

func inspectGPUs(driver *cuda.Driver) ([]GPU, error) {
	n, err := driver.DeviceCount()
	if err != nil {
		return nil, err
	}
	gpus := []GPU{}
	for ordinal := range n {
		device, err := driver.Device(ordinal)
		if err != nil {
			return gpus, err
		}
		gpu, err := inspectGPU(driver, device)
		if err != nil {
			return gpus, fmt.Errorf("querying GPU %d: %w", ordinal, err)
		}
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

func inspectGPU(driver *cuda.Driver, device cuda.Device) (GPU, error) {
	g := GPU{Ordinal: device.Ordinal()}
	var errs [4]error
	g.Name, errs[0] = device.Name()
	g.UUID, errs[1] = device.UUID()
	g.PCI, errs[2] = device.PCIBusID()
	g.Memory, errs[3] = device.TotalMem()
	if err := errors.Join(errs[:]...); err != nil {
		return g, err
	}
	attribute := func(a cuda.Attribute) int {
		value, err := device.Attribute(a)
		if err != nil {
			return 0
		}
		return value
	}
	g.Major = attribute(cuda.AttributeComputeCapabilityMajor)
	g.Minor = attribute(cuda.AttributeComputeCapabilityMinor)
	g.VMM = attribute(cuda.AttributeVMMSupported) != 0
	g.PosixFD = attribute(cuda.AttributePosixFDSupported) != 0
	g.Fabric = attribute(cuda.AttributeFabricSupported) != 0
	g.RDMA = attribute(cuda.AttributeRDMAWithVMMSupported) != 0
	g.Multicast = attribute(cuda.AttributeMulticastSupported) != 0
	mode := attribute(cuda.AttributeComputeMode)
	g.Exclusive, g.Prohibited = mode == modeExclusive, mode == modeProhibited
	if g.VMM {
		prop := cuda.PinnedMemory(device, cuda.HandlePosixFD, g.RDMA)
		if unit, err := driver.Granularity(prop, true); err == nil {
			g.Granularity = unit
		}
	}
	return g, nil
}

// windowCapability is the lowest compute capability (6.0) for which NCCL has window kernels
// (src/device/symmetric/generate.py).
const windowCapability = 6

func judgeGPUs(f *Facts, s *Section) {
	for i := range f.GPUs {
		f.GPUs[i].judge(s)
	}
	fabric := slices.ContainsFunc(f.GPUs, func(g GPU) bool { return g.Fabric })
	if fabric && f.Driver.IMEXChannels == 0 {
		s.ok("this process has no IMEX channel (/dev/nvidia-caps-imex-channels) and therefore cannot " +
			"use fabric handles, so the direct path works only within one container")
	}
	for i := range f.GPUs {
		if f.GPUs[i].Name != f.GPUs[0].Name {
			s.add(Warn, "select GPUs of one model (CUDA_VISIBLE_DEVICES)", "the GPUs are of different "+
				"models, so collectives wait for the slowest")
			return
		}
	}
}

func (g *GPU) judge(s *Section) {
	s.ok("%d: %s, compute capability %d.%d, %s, %s, %s", g.Ordinal, g.Name, g.Major, g.Minor,
		size(g.Memory), g.PCI, g.UUID)
	s.ok("%d: virtual memory management %s (granularity %s), file descriptor handles %s, fabric "+
		"handles %s, RDMA %s, multicast %s (symmem never uses it)", g.Ordinal, yesNo(g.VMM),
		size(g.Granularity), yesNo(g.PosixFD), yesNo(g.Fabric), yesNo(g.RDMA), yesNo(g.Multicast))
	switch {
	case !g.VMM:
		s.add(Fail, "use a GPU and a driver with virtual memory management; under a hypervisor, check "+
			"its configuration", "%d: no virtual memory management, so the nccl backend cannot create "+
			"segments", g.Ordinal)
	case !g.PosixFD:
		s.add(Fail, "use a GPU and a driver whose memory can be exported as a file descriptor",
			"%d: memory cannot be shared with other processes, so there are no windows", g.Ordinal)
	case g.Prohibited:
		s.add(Fail, "run nvidia-smi -c DEFAULT as root", "%d: the compute mode prohibits its use",
			g.Ordinal)
	case g.Exclusive:
		s.add(Warn, "run nvidia-smi -c DEFAULT as root, unless only one process uses each GPU",
			"%d: only one process at a time may use it", g.Ordinal)
	case g.Major < windowCapability:
		s.add(Warn, "use a GPU of compute capability 6.0 or newer", "%d: NCCL has no window kernels "+
			"for compute capability %d.%d", g.Ordinal, g.Major, g.Minor)
	}
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func size(bytes int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.4g %s", float64(bytes)/float64(unit.bytes), unit.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
