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

// nvml calls functions of NVML, NVIDIA's management library, by their C names. For example, the C
// function nvmlDeviceGetP2PStatus(a, b, NVML_P2P_CAPS_INDEX_NVLINK, &status) asks whether NVLink
// connects the GPUs a and b. It returns a code, and writes the result to a cell: memory at a fixed
// address. An nvml must not be used after close.
type nvml struct {
	library *dl.Library
}

// nvmlDevice is NVML's handle of a GPU (nvmlDevice_t).
type nvmlDevice uintptr

// Constants of nvml.h in CUDA 12.9.
const (
	nvmlSuccess        = 0  // NVML_SUCCESS, a code
	nvmlNotSupported   = 3  // NVML_ERROR_NOT_SUPPORTED, a code
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
	f, isPresent := n.library.Find(name)
	if !isPresent {
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
	cell := dl.NewCell(uintptr(0)) // for the handle
	err := n.call("nvmlDeviceGetHandleByPciBusId_v2", dl.AddressOf(address), cell.Address())
	runtime.KeepAlive(address)
	handle := cell.Take() // releases the cell, also after an error
	return nvmlDevice(handle), err
}

// areConnectedByNVLink reports whether kernels on a can access the memory of b through NVLink.
func (n *nvml) areConnectedByNVLink(a, b nvmlDevice) (bool, error) {
	cell := dl.NewCell(int32(-1)) // for the status; initially invalid
	err := n.call("nvmlDeviceGetP2PStatus", uintptr(a), uintptr(b), nvmlP2PIndexNVLink,
		cell.Address())
	status := cell.Take()
	return status == nvmlP2PStatusOK, err
}

// countActiveNVLinks returns the number of the GPU's NVLinks that are active. If the GPU has fewer
// than maxNVLinks, the queries for the others fail. They count as inactive.
func (n *nvml) countActiveNVLinks(d nvmlDevice) int {
	count := 0
	for link := range uintptr(maxNVLinks) {
		cell := dl.NewCell(int32(0)) // for the state
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
	const bufferBytes = 80                  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	cell := dl.NewCell([bufferBytes]byte{}) // for the version, as a C string
	err := n.call("nvmlSystemGetDriverVersion", cell.Address(), bufferBytes)
	buffer := cell.Take()
	endOfString := []byte{0}
	version, _, _ := bytes.Cut(buffer[:], endOfString)
	return string(version), err
}
