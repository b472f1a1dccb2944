package doctor

import (
	"errors"
	"fmt"
	"slices"

	"symmem/internal/cuda"
)

// GPU describes a GPU that CUDA shows to this process. A number or bool that the driver cannot
// query is 0 or false.
type GPU struct {
	Ordinal     int    `json:"ordinal"` // CUDA's number of the GPU in this process
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	PCIAddress  string `json:"pci"` // as CUDA formats it
	MemoryBytes int64  `json:"memory"`
	// Major and Minor are the parts of the compute capability, such as 9 and 0.
	Major             int  `json:"major"`
	Minor             int  `json:"minor"`
	SupportsVMM       bool `json:"vmm"`       // virtual memory management
	SupportsPosixFD   bool `json:"posix_fd"`  // memory can be shared through file descriptors
	SupportsFabric    bool `json:"fabric"`    // memory can be shared through fabric handles
	SupportsRDMA      bool `json:"rdma"`      // network cards can access the memory
	SupportsMulticast bool `json:"multicast"` // only reported: symmem never uses multicast
	// Granularity is the recommended unit of the sizes of mappings in bytes, or 0 if unknown.
	Granularity  int64 `json:"granularity"`
	IsExclusive  bool  `json:"exclusive,omitempty"`  // only one process may use the GPU
	IsProhibited bool  `json:"prohibited,omitempty"` // no process may use the GPU
}

// Values of cuda.AttributeComputeMode.
const (
	computeModeProhibited = 2 // CU_COMPUTEMODE_PROHIBITED
	computeModeExclusive  = 3 // CU_COMPUTEMODE_EXCLUSIVE_PROCESS
)

// inspectGPUs describes the visible GPUs. If it fails at a GPU, it returns the GPUs before that one
// and the error.
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

// inspectGPU describes a GPU. It returns an error only if the driver cannot query a property that
// it knows for every GPU, such as the name.
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

	attribute := func(name cuda.Attribute) int {
		value, err := device.Attribute(name)
		if err != nil { // the driver does not know the attribute
			return 0
		}

		return value
	}
	g.Major = attribute(cuda.AttributeComputeCapabilityMajor)
	g.Minor = attribute(cuda.AttributeComputeCapabilityMinor)
	g.SupportsVMM = attribute(cuda.AttributeVMMSupported) != 0
	g.SupportsPosixFD = attribute(cuda.AttributePosixFDSupported) != 0
	g.SupportsFabric = attribute(cuda.AttributeFabricSupported) != 0
	g.SupportsRDMA = attribute(cuda.AttributeRDMAWithVMMSupported) != 0
	g.SupportsMulticast = attribute(cuda.AttributeMulticastSupported) != 0
	mode := attribute(cuda.AttributeComputeMode)
	g.IsExclusive = mode == computeModeExclusive
	g.IsProhibited = mode == computeModeProhibited
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

// minWindowMajor is the major part of the lowest compute capability (6.0) for which NCCL has
// window kernels, as in src/device/symmetric/generate.py of NCCL. Window kernels work on windows:
// memory that is registered on all ranks.
const minWindowMajor = 6

// judgeGPUs adds findings about each GPU and about all GPUs together to s.
func judgeGPUs(f *Facts, s *Section) {
	for i := range f.GPUs {
		f.GPUs[i].judge(s)
	}

	hasFabric := slices.ContainsFunc(f.GPUs, func(g GPU) bool { return g.SupportsFabric })
	if hasFabric && f.Driver.IMEXChannels == 0 {
		s.addOK("this process has no IMEX channel (/dev/nvidia-caps-imex-channels) and therefore " +
			"cannot use fabric handles, so the direct path works only within one container")
	}

	isOtherModel := func(g GPU) bool { return g.Name != f.GPUs[0].Name }
	if slices.ContainsFunc(f.GPUs, isOtherModel) {
		s.add(Warn, "select GPUs of one model (CUDA_VISIBLE_DEVICES)", "the GPUs are of different "+
			"models, so collectives wait for the slowest")
	}
}

// judge adds a description of the GPU to s, and its most serious problem if it has one. Each text
// begins with the ordinal of the GPU.
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

// formatBytes formats a size in the largest unit of which it is at least one, such as 140.4 GiB.
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
