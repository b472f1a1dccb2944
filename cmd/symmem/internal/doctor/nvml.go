package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"symmem/internal/dl"
)

const nvmlVariable = "SYMMEM_NVML"

// nvml calls NVIDIA's management library (NVML), as declared in nvml.h of CUDA 12.9. It must not be
// used after close.
type nvml struct {
	library *dl.Library
}

// nvmlDevice is an opaque handle (nvmlDevice_t).
type nvmlDevice uintptr

const (
	nvmlSuccess        = 0
	nvmlNotSupported   = 3  // NVML_ERROR_NOT_SUPPORTED
	maxNVLinks         = 18 // NVML_NVLINK_MAX_LINKS
	nvmlP2PIndexNVLink = 2  // NVML_P2P_CAPS_INDEX_NVLINK
	nvmlP2PStatusOK    = 0  // NVML_P2P_STATUS_OK
)

var errNVMLUnsupported = errors.New("NVML does not support this query")

func openNVML() (*nvml, error) {
	name := os.Getenv(nvmlVariable)
	if name == "" {
		name = "libnvidia-ml.so.1"
	}
	library, err := dl.Open(name)
	if err != nil {
		return nil, fmt.Errorf("NVML is not available: %w", err)
	}
	n := &nvml{library}
	if err := n.call("nvmlInit_v2"); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *nvml) close() { _ = n.call("nvmlShutdown") }

// call calls a function of NVML. If NVML lacks the function or does not support the query, the
// error wraps errNVMLUnsupported.
func (n *nvml) call(name string, args ...uintptr) error {
	f, ok := n.library.Find(name)
	if !ok {
		return fmt.Errorf("%s: %w", name, errNVMLUnsupported)
	}
	switch code := int32(f.Call(args...)); code {
	case nvmlSuccess:
		return nil
	case nvmlNotSupported:
		return fmt.Errorf("%s: %w", name, errNVMLUnsupported)
	default:
		return fmt.Errorf("%s: NVML returned error %d", name, code)
	}
}

// findDevice returns the device at a PCI address.
func (n *nvml) findDevice(pciAddress string) (nvmlDevice, error) {
	text, handle := dl.CString(pciAddress), dl.NewCell(uintptr(0))
	err := n.call("nvmlDeviceGetHandleByPciBusId_v2", dl.AddressOf(text), handle.Address())
	runtime.KeepAlive(text)
	return nvmlDevice(handle.Take()), err
}

func (n *nvml) areConnectedByNVLink(a, b nvmlDevice) (bool, error) {
	status := dl.NewCell(int32(-1))
	err := n.call("nvmlDeviceGetP2PStatus", uintptr(a), uintptr(b), nvmlP2PIndexNVLink,
		status.Address())
	return status.Take() == nvmlP2PStatusOK, err
}

func (n *nvml) countActiveNVLinks(d nvmlDevice) int {
	count := 0
	for link := range uintptr(maxNVLinks) {
		active := dl.NewCell(int32(0))
		err := n.call("nvmlDeviceGetNvLinkState", uintptr(d), link, active.Address())
		if isActive := active.Take() != 0; err == nil && isActive {
			count++
		}
	}
	return count
}

// driverVersion returns the version of the driver, such as 580.159.
func (n *nvml) driverVersion() (string, error) {
	// NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80.
	text := dl.NewCell([80]byte{})
	err := n.call("nvmlSystemGetDriverVersion", text.Address(), 80)
	buffer := text.Take()
	version, _, _ := bytes.Cut(buffer[:], []byte{0})
	return string(version), err
}
