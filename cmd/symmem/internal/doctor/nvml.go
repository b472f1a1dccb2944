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

// nvml calls functions of NVML, NVIDIA's management library.
type nvml struct {
	library *dl.Library
}

// nvmlDevice is NVML's handle of a GPU (nvmlDevice_t).
type nvmlDevice uintptr

// Constants of nvml.h in CUDA 12.9.
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

// close ignores errors, because the caller already has all results.
func (n *nvml) close() { _ = n.call("nvmlShutdown") }

// call calls the function with the given C name. The error wraps errNVMLUnsupported if NVML or the
// GPU does not support the query.
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

func (n *nvml) deviceAt(pciAddress string) (nvmlDevice, error) {
	address := dl.CString(pciAddress)
	handleCell := dl.NewCell(uintptr(0))
	err := n.call("nvmlDeviceGetHandleByPciBusId_v2", dl.AddressOf(address), handleCell.Address())
	runtime.KeepAlive(address)
	handle := handleCell.Take() // frees the cell, even after an error
	return nvmlDevice(handle), err
}

// areConnectedByNVLink reports whether kernels on a can access the memory of b through NVLink.
func (n *nvml) areConnectedByNVLink(a, b nvmlDevice) (bool, error) {
	const notWritten = int32(-1) // NVML has no such status
	statusCell := dl.NewCell(notWritten)
	err := n.call("nvmlDeviceGetP2PStatus", uintptr(a), uintptr(b), nvmlP2PIndexNVLink,
		statusCell.Address())
	isConnected := statusCell.Take() == nvmlP2PStatusOK
	return isConnected, err
}

// countActiveNVLinks ignores links that cannot be queried: d may have fewer than maxNVLinks.
func (n *nvml) countActiveNVLinks(d nvmlDevice) int {
	count := 0
	for link := range uintptr(maxNVLinks) {
		stateCell := dl.NewCell(int32(0))
		err := n.call("nvmlDeviceGetNvLinkState", uintptr(d), link, stateCell.Address())
		isActive := stateCell.Take() != 0
		if err == nil && isActive {
			count++
		}
	}

	return count
}

// driverVersion returns a version such as 580.159.
func (n *nvml) driverVersion() (string, error) {
	const bufferBytes = 80 // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	versionCell := dl.NewCell([bufferBytes]byte{})
	err := n.call("nvmlSystemGetDriverVersion", versionCell.Address(), bufferBytes)
	buffer := versionCell.Take()
	endOfCString := []byte{0}
	version, _, _ := bytes.Cut(buffer[:], endOfCString)
	return string(version), err
}
