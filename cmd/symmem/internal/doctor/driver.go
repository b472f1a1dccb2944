package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"symmem/internal/cuda"
)

// Driver describes the two parts of NVIDIA's driver: the library libcuda and the kernel module.
type Driver struct {
	Path        string `json:"path,omitempty"`    // path of libcuda
	CUDAVersion int    `json:"cuda,omitempty"`    // newest supported CUDA: 12090 stands for 12.9
	Version     string `json:"version,omitempty"` // such as 580.159, or empty if unknown
	// IMEXChannels is the number of visible channels of IMEX, NVIDIA's service for sharing GPU
	// memory between machines. A process needs a channel to use fabric handles.
	IMEXChannels int    `json:"imex_channels"`
	Error        string `json:"error,omitempty"` // last error of loading or querying libcuda
	HasNoLibcuda bool   `json:"none,omitempty"`  // no suitable libcuda was found
	ErrorCode    int    `json:"code,omitempty"`  // CUDA's code for Error, or 0 if it has none
}

// InspectDriver loads libcuda and describes the driver and the GPUs. It creates no CUDA context.
func InspectDriver() (Driver, []GPU) {
	d := Driver{Version: kernelModuleVersion()}
	driver, err := cuda.Load()
	if err != nil {
		d.setError(err)
		return d, nil
	}

	d.Path = driver.Path()
	if d.Version == "" {
		d.Version = nvmlDriverVersion()
	}

	d.CUDAVersion, err = driver.Version()
	if err != nil {
		d.setError(err)
	}

	d.IMEXChannels = countIMEXChannels()
	gpus, err := inspectGPUs(driver)
	if err != nil {
		d.setError(err)
	}

	return d, gpus
}

func (d *Driver) setError(err error) {
	d.Error = err.Error()
	d.HasNoLibcuda = errors.Is(err, cuda.ErrNoDriver)
	code, _ := errors.AsType[cuda.Code](err) // 0 if the error has no code
	d.ErrorCode = int(code)
}

func countIMEXChannels() int {
	// Glob fails only if the pattern is invalid.
	files, _ := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*")
	return len(files)
}

// moduleVersionPattern matches a line such as:
//
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159  Release Build
var moduleVersionPattern = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

// kernelModuleVersion returns the version of the kernel module, or "" if it is unknown.
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

// nvmlDriverVersion returns the driver's version, or "" if it is unknown. NVML also works in
// containers that hide /proc/driver/nvidia.
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

// minVMMVersion is the first version of CUDA with which NCCL uses virtual memory management, which
// windows need.
const minVMMVersion = 12000 // 12.0

func judgeDriver(f *Facts, s *Section) {
	d := &f.Driver
	if d.Error != "" {
		judgeDriverError(f, s)
		return
	}

	version := cmp.Or(d.Version, "of unknown version")
	s.addOK("driver %s for CUDA %s, %s", version, cudaVersionText(d.CUDAVersion), d.Path)
	if d.CUDAVersion < minVMMVersion {
		s.add(Warn, "install a driver for CUDA 12.0 or newer", "NCCL does not use virtual memory "+
			"management with a driver for CUDA %s, so it cannot create windows",
			cudaVersionText(d.CUDAVersion))
	}
}

func judgeDriverError(f *Facts, s *Section) {
	d := &f.Driver
	level := Fail
	fallsBackToHost := f.RequestedBackend == "auto" && len(f.GPUs) == 0
	if fallsBackToHost { // the host backend needs no GPU
		level = Warn
	}

	if d.HasNoLibcuda {
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
