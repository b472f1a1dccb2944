package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"symmem/internal/cuda"
)

// NVIDIA's driver has two parts: a kernel module with a version such as 580.159, and the library
// libcuda. The library supports versions of CUDA up to, for example, 12.9. doctor inspects both
// parts, and then judges the result: it adds findings, such as advice for an error.

// Driver describes NVIDIA's driver.
type Driver struct {
	Path        string `json:"path,omitempty"`    // of libcuda
	CUDAVersion int    `json:"cuda,omitempty"`    // newest supported version; 12090 is 12.9
	Version     string `json:"version,omitempty"` // such as 580.159, or empty if unknown
	// IMEXChannels is the number of channels of IMEX, NVIDIA's memory exchange between machines, that
	// the process can see. It needs one to share memory with other machines through fabric handles.
	IMEXChannels int `json:"imex_channels"`
	// Error states why there is no usable driver or GPU. It is "" if there is one.
	Error     string `json:"error,omitempty"`
	IsMissing bool   `json:"none,omitempty"` // for an error: whether CUDA is not installed
	ErrorCode int    `json:"code,omitempty"` // for an error of CUDA: its code; otherwise 0
}

// InspectDriver loads libcuda, and describes the driver and the GPUs. It creates no context.
func InspectDriver() (Driver, []GPU) {
	d := Driver{Version: kernelModuleVersion()}
	library, err := cuda.Load()
	if err != nil {
		d.setError(err)
		return d, nil
	}

	d.Path = library.Path()
	if d.Version == "" {
		d.Version = nvmlDriverVersion()
	}

	d.CUDAVersion, err = library.Version()
	if err != nil {
		d.setError(err)
	}

	d.IMEXChannels = countIMEXChannels()
	gpus, err := inspectGPUs(library)
	if err != nil {
		d.setError(err)
	}

	return d, gpus
}

// setError stores an error, which replaces an earlier one.
func (d *Driver) setError(err error) {
	d.Error = err.Error()
	d.IsMissing = errors.Is(err, cuda.ErrNoDriver)
	code, _ := errors.AsType[cuda.Code](err) // 0 if the error has no code
	d.ErrorCode = int(code)
}

// countIMEXChannels returns the number of IMEX channels that this process can see.
func countIMEXChannels() int {
	files, _ := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*") // the pattern is valid
	return len(files)
}

// moduleVersionPattern matches a line such as "NVRM version: NVIDIA UNIX Open Kernel Module for
// x86_64  580.159  Release Build".
var moduleVersionPattern = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

// kernelModuleVersion reads the version of the kernel module from its file. It returns "" if the
// version is unknown.
func kernelModuleVersion() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}

	matches := moduleVersionPattern.FindSubmatch(text)
	if matches == nil {
		return ""
	}

	return string(matches[1])
}

// nvmlDriverVersion asks NVML, NVIDIA's management library, for the version of the driver. This
// works even in containers without the file of the kernel module. It returns "" if the version is
// unknown.
func nvmlDriverVersion() string {
	management, err := openNVML()
	if err != nil {
		return ""
	}
	defer management.close()
	version, err := management.driverVersion()
	if err != nil {
		return ""
	}

	return version
}

// cudaVersionText formats a version such as 12090 as 12.9.
func cudaVersionText(version int) string {
	major := version / 1000
	minor := version % 1000 / 10
	return fmt.Sprintf("%d.%d", major, minor)
}

// adviceByErrorCode states what to do about errors of CUDA.
var adviceByErrorCode = map[cuda.Code]string{
	cuda.ErrNoDevice: "check whether nvidia-smi shows a GPU and whether the container was started " +
		"with GPUs, and check CUDA_VISIBLE_DEVICES",
	cuda.ErrSystemNotReady: "start the fabric manager (systemctl start nvidia-fabricmanager); " +
		"it must have the same version as the driver",
	cuda.ErrSystemDriverMismatch: "libcuda and the kernel module have different versions: restart " +
		"the machine after a driver update, or correct the container's mounts",
	cuda.ErrStubLibrary: "the loader finds the CUDA toolkit's stub library: remove its folder from " +
		"LD_LIBRARY_PATH",
	cuda.ErrCompatNotSupportedOnDevice: "remove the folder of CUDA's compatibility package from " +
		"LD_LIBRARY_PATH: this GPU needs the libcuda of the driver",
}

// minVMMVersion is the first version of CUDA (12.0) with which NCCL uses virtual memory management.
// NCCL needs it to create windows (memory that is registered on all ranks).
const minVMMVersion = 12000

// judgeDriver adds findings about the driver to s.
func judgeDriver(f *Facts, s *Section) {
	d := &f.Driver
	if d.Error != "" {
		judgeDriverError(f, s)
		return
	}

	version := "of unknown version"
	if d.Version != "" {
		version = d.Version
	}

	s.addOK("driver %s for CUDA %s, %s", version, cudaVersionText(d.CUDAVersion), d.Path)
	if d.CUDAVersion < minVMMVersion {
		s.add(Warn, "install a driver for CUDA 12.0 or newer", "NCCL does not use virtual memory "+
			"management with a driver for CUDA %s, so it cannot create windows",
			cudaVersionText(d.CUDAVersion))
	}
}

// judgeDriverError adds a finding about the error of the driver to s.
func judgeDriverError(f *Facts, s *Section) {
	d := &f.Driver
	level := Fail
	canUseHostBackend := f.RequestedBackend == "auto" && len(f.GPUs) == 0
	if canUseHostBackend { // symmem works without a GPU
		level = Warn
	}

	if d.IsMissing {
		s.add(level, "install NVIDIA's driver, or start the container with GPUs; symmem --backend "+
			"host needs none", "no GPU can be used: %s", d.Error)
		return
	}

	advice, isKnown := adviceByErrorCode[cuda.Code(d.ErrorCode)]
	if !isKnown {
		advice = "look for the GPUs in the output of nvidia-smi and the kernel's log (dmesg)"
	}

	s.add(level, advice, "the driver finds no working GPU: %s", d.Error)
}
