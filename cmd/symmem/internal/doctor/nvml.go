package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"symmem/internal/dl"
)

// nvmlVariable names the environment variable that overrides the file name of NVML.
const nvmlVariable = "SYMMEM_NVML"

// nvml calls NVIDIA's management library (NVML), as declared in nvml.h of CUDA 12.9. It must not be
// used after close.
type nvml struct {
	library *dl.Library
}

// nvmlDevice is NVML's handle of a GPU (nvmlDevice_t).
type nvmlDevice uintptr

const (
	nvmlSuccess        = 0  // NVML_SUCCESS
	nvmlNotSupported   = 3  // NVML_ERROR_NOT_SUPPORTED
	maxNVLinks         = 18 // NVML_NVLINK_MAX_LINKS
	nvmlP2PIndexNVLink = 2  // NVML_P2P_CAPS_INDEX_NVLINK
	nvmlP2PStatusOK    = 0  // NVML_P2P_STATUS_OK
)

var errNVMLUnsupported = errors.New("NVML does not support this query")

// openNVML loads and initializes NVML. The caller must call close.
func openNVML() (*nvml, error) {
	name := os.Getenv(nvmlVariable)
	if name == "" {
		name = "libnvidia-ml.so.1"
	}

	library, err := dl.Open(name)
	if err != nil {
		return nil, fmt.Errorf("NVML is not available: %w", err)
	}

	n := &nvml{library: library}
	if err := n.call("nvmlInit_v2"); err != nil {
		return nil, err
	}

	return n, nil
}

// close releases NVML's resources. It ignores an error, because all results have been read.
func (n *nvml) close() { _ = n.call("nvmlShutdown") }

// call calls the function of NVML with the given name, and returns an error unless it succeeds. If
// NVML lacks the function or does not support the query, the error wraps errNVMLUnsupported.
func (n *nvml) call(name string, args ...uintptr) error {
	f, ok := n.library.Find(name)
	if !ok {
		return fmt.Errorf("%s: %w", name, errNVMLUnsupported)
	}

	code := int32(f.Call(args...)) // an nvmlReturn_t has 32 bits
	switch code {
	case nvmlSuccess:
		return nil
	case nvmlNotSupported:
		return fmt.Errorf("%s: %w", name, errNVMLUnsupported)
	default:
		return fmt.Errorf("%s: NVML returned error %d", name, code)
	}
}

// deviceAt returns the handle of the GPU at a PCI address.
func (n *nvml) deviceAt(pciAddress string) (nvmlDevice, error) {
	address := dl.CString(pciAddress)
	cell := dl.NewCell(uintptr(0)) // NVML writes the handle here
	err := n.call("nvmlDeviceGetHandleByPciBusId_v2", dl.AddressOf(address), cell.Address())
	runtime.KeepAlive(address)
	handle := cell.Take() // also after an error, to release the cell
	return nvmlDevice(handle), err
}

// areConnectedByNVLink reports whether kernels on a can access the memory of b through NVLink.
func (n *nvml) areConnectedByNVLink(a, b nvmlDevice) (bool, error) {
	cell := dl.NewCell(int32(-1)) // no valid status
	err := n.call("nvmlDeviceGetP2PStatus", uintptr(a), uintptr(b), nvmlP2PIndexNVLink,
		cell.Address())
	status := cell.Take()
	return status == nvmlP2PStatusOK, err
}

// countActiveNVLinks returns the number of the GPU's links that are active. A query that fails
// counts as an inactive link, because a GPU may have fewer than maxNVLinks links.
func (n *nvml) countActiveNVLinks(d nvmlDevice) int {
	count := 0
	for link := range uintptr(maxNVLinks) {
		cell := dl.NewCell(int32(0))
		err := n.call("nvmlDeviceGetNvLinkState", uintptr(d), link, cell.Address())
		isActive := cell.Take() != 0
		if err == nil && isActive {
			count++
		}
	}

	return count
}

// driverVersion returns the version of the driver, such as 580.159.
func (n *nvml) driverVersion() (string, error) {
	const bufferBytes = 80 // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	cell := dl.NewCell([bufferBytes]byte{})
	err := n.call("nvmlSystemGetDriverVersion", cell.Address(), bufferBytes)
	buffer := cell.Take()
	version, _, _ := bytes.Cut(buffer[:], []byte{0}) // a C string ends with a zero byte
	return string(version), err
}
