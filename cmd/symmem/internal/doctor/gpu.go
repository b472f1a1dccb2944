package doctor

import (
	"errors"
	"fmt"
	"slices"

	"symmem/internal/cuda"
)

// GPU describes a GPU. With CUDA's virtual memory management (VMM), processes share memory by file
// descriptors or fabric handles. Only fabric handles work between containers and between machines.
type GPU struct {
	Ordinal           int    `json:"ordinal"` // CUDA's index of the GPU in this process
	Name              string `json:"name"`
	UUID              string `json:"uuid"`
	PCIAddress        string `json:"pci"` // such as 0000:01:00.0
	MemoryBytes       int64  `json:"memory"`
	Major             int    `json:"major"` // of the compute capability: 9 in 9.0
	Minor             int    `json:"minor"` // of the compute capability: 0 in 9.0
	SupportsVMM       bool   `json:"vmm"`
	SupportsPosixFD   bool   `json:"posix_fd"`             // can export memory as a file descriptor
	SupportsFabric    bool   `json:"fabric"`               // can export memory as a fabric handle
	SupportsRDMA      bool   `json:"rdma"`                 // network cards can access the memory
	SupportsMulticast bool   `json:"multicast"`            // symmem does not use it
	Granularity       int64  `json:"granularity"`          // recommended unit of mappings, in bytes
	IsExclusive       bool   `json:"exclusive,omitempty"`  // only one process may use the GPU
	IsProhibited      bool   `json:"prohibited,omitempty"` // no process may use the GPU
}

// inspectGPUs describes the GPUs that CUDA shows to this process. On an error, it also returns the
// GPUs inspected so far.
func inspectGPUs(driver *cuda.Driver) ([]GPU, error) {
	count, err := driver.DeviceCount()
	if err != nil {
		return nil, err
	}

	gpus := []GPU{}
	for ordinal := range count {
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

// inspectGPU fails only if the driver cannot query the name, UUID, PCI address, or memory size.
func inspectGPU(driver *cuda.Driver, device cuda.Device) (GPU, error) {
	g := GPU{Ordinal: device.Ordinal()}
	var nameErr, uuidErr, addressErr, memoryErr error
	g.Name, nameErr = device.Name()
	g.UUID, uuidErr = device.UUID()
	g.PCIAddress, addressErr = device.PCIBusID()
	g.MemoryBytes, memoryErr = device.TotalMem()
	if err := errors.Join(nameErr, uuidErr, addressErr, memoryErr); err != nil {
		return g, err
	}

	g.inspectAttributes(device)
	if g.SupportsVMM {
		const recommended = true
		properties := cuda.PinnedMemory(device, cuda.HandlePosixFD, g.SupportsRDMA)
		granularity, err := driver.Granularity(properties, recommended)
		if err == nil {
			g.Granularity = granularity
		}
	}

	return g, nil
}

// Values of cuda.AttributeComputeMode.
const (
	computeModeProhibited = 2 // CU_COMPUTEMODE_PROHIBITED
	computeModeExclusive  = 3 // CU_COMPUTEMODE_EXCLUSIVE_PROCESS
)

// inspectAttributes treats an attribute that an old driver does not know as 0.
func (g *GPU) inspectAttributes(device cuda.Device) {
	attribute := func(name cuda.Attribute) int {
		value, err := device.Attribute(name)
		if err != nil {
			return 0
		}

		return value
	}
	supports := func(name cuda.Attribute) bool { return attribute(name) != 0 }
	g.Major = attribute(cuda.AttributeComputeCapabilityMajor)
	g.Minor = attribute(cuda.AttributeComputeCapabilityMinor)
	g.SupportsVMM = supports(cuda.AttributeVMMSupported)
	g.SupportsPosixFD = supports(cuda.AttributePosixFDSupported)
	g.SupportsFabric = supports(cuda.AttributeFabricSupported)
	g.SupportsRDMA = supports(cuda.AttributeRDMAWithVMMSupported)
	g.SupportsMulticast = supports(cuda.AttributeMulticastSupported)
	mode := attribute(cuda.AttributeComputeMode)
	g.IsExclusive = mode == computeModeExclusive
	g.IsProhibited = mode == computeModeProhibited
}

// minWindowMajor is the lowest major compute capability that NCCL's window kernels support. See
// src/device/symmetric/generate.py in NCCL.
const minWindowMajor = 6

func judgeGPUs(f *Facts, s *Section) {
	for i := range f.GPUs {
		f.GPUs[i].judge(s)
	}

	hasFabric := slices.ContainsFunc(f.GPUs, func(g GPU) bool { return g.SupportsFabric })
	if hasFabric && f.Driver.IMEXChannels == 0 {
		s.addOK("this process has no IMEX channel (/dev/nvidia-caps-imex-channels) and therefore " +
			"cannot use fabric handles, so the direct path works only within one container")
	}

	differsFromFirst := func(g GPU) bool { return g.Name != f.GPUs[0].Name }
	if slices.ContainsFunc(f.GPUs, differsFromFirst) {
		s.add(Warn, "select GPUs of one model (CUDA_VISIBLE_DEVICES)", "the GPUs are of different "+
			"models, so collectives wait for the slowest")
	}
}

// judge describes the GPU and adds its most serious problem, if any.
func (g *GPU) judge(s *Section) {
	s.addOK("%d: %s, compute capability %d.%d, %s, %s, %s", g.Ordinal, g.Name, g.Major, g.Minor,
		formatBytes(g.MemoryBytes), g.PCIAddress, g.UUID)
	s.addOK("%d: virtual memory management %s (granularity %s), file descriptor handles %s, fabric "+
		"handles %s, RDMA %s, multicast %s (symmem never uses it)", g.Ordinal,
		formatBool(g.SupportsVMM), formatBytes(g.Granularity), formatBool(g.SupportsPosixFD),
		formatBool(g.SupportsFabric), formatBool(g.SupportsRDMA), formatBool(g.SupportsMulticast))
	switch {
	case !g.SupportsVMM:
		s.add(Fail, "use a GPU and a driver with virtual memory management; under a hypervisor, check "+
			"its configuration", "%d: no virtual memory management, so the nccl backend cannot create "+
			"segments", g.Ordinal)
	case !g.SupportsPosixFD:
		s.add(Fail, "use a GPU and a driver whose memory can be exported as a file descriptor",
			"%d: memory cannot be shared with other processes, so there are no windows", g.Ordinal)
	case g.IsProhibited:
		s.add(Fail, "run nvidia-smi -c DEFAULT as root", "%d: the compute mode prohibits its use",
			g.Ordinal)
	case g.IsExclusive:
		s.add(Warn, "run nvidia-smi -c DEFAULT as root, unless only one process uses each GPU",
			"%d: only one process at a time may use it", g.Ordinal)
	case g.Major < minWindowMajor:
		s.add(Warn, "use a GPU of compute capability 6.0 or newer", "%d: NCCL has no window kernels "+
			"for compute capability %d.%d", g.Ordinal, g.Major, g.Minor)
	}
}

func formatBool(value bool) string {
	if value {
		return "yes"
	}

	return "no"
}

// formatBytes formats a size with a suitable unit, such as "140.4 GiB".
func formatBytes(bytes int64) string {
	units := []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	for _, unit := range units {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.4g %s", float64(bytes)/float64(unit.bytes), unit.name)
		}
	}

	return fmt.Sprintf("%d B", bytes)
}
