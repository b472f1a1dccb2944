package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"symmem/internal/cuda"
)

// Driver describes NVIDIA's driver.
type Driver struct {
	// Path is the path of libcuda.
	Path string `json:"path,omitempty"`
	// CUDA is the newest CUDA version that libcuda supports, such as 12090.
	CUDA int `json:"cuda,omitempty"`
	// Version is the version of the driver, such as 580.159, or empty if unknown.
	Version string `json:"version,omitempty"`
	// IMEXChannels is the number of IMEX channels visible to the process. Fabric handles need one.
	IMEXChannels int `json:"imex_channels"`
	// Error states why there is no usable driver or GPU.
	Error string `json:"error,omitempty"`
	// NotInstalled is set if CUDA is not installed.
	NotInstalled bool `json:"none,omitempty"`
	// Code is CUDA's error code, or 0.
	Code int `json:"code,omitempty"`
}

// vmmCUDAVersion is the first CUDA version (12.0) with which NCCL uses virtual memory management.
const vmmCUDAVersion = 12000

// InspectDriver loads CUDA and lists the GPUs. It creates no context.
func InspectDriver() (Driver, []GPU) {
	d := Driver{Version: moduleDriverVersion()}
	library, err := cuda.Load()
	if err != nil {
		d.fail(err)
		return d, nil
	}
	d.Path = library.Path()
	if d.Version == "" {
		d.Version = nvmlDriverVersion()
	}
	if d.CUDA, err = library.Version(); err != nil {
		d.fail(err)
	}
	d.IMEXChannels = countIMEXChannels()
	gpus, err := inspectGPUs(library)
	if err != nil {
		d.fail(err)
	}
	return d, gpus
}

func (d *Driver) fail(err error) {
	d.Error, d.NotInstalled = err.Error(), errors.Is(err, cuda.ErrNoDriver)
	if code, ok := errors.AsType[cuda.Code](err); ok {
		d.Code = int(code)
	}
}

func countIMEXChannels() int {
	files, _ := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*") // the pattern is valid
	return len(files)
}

var moduleVersion = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

// moduleDriverVersion returns the driver's version as reported by the kernel module.
func moduleDriverVersion() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	found := moduleVersion.FindSubmatch(text)
	if found == nil {
		return ""
	}
	return string(found[1])
}

// nvmlDriverVersion returns the driver's version as reported by NVML, which also works in
// containers that lack the kernel module's files.
func nvmlDriverVersion() string {
	m, err := openNVML()
	if err != nil {
		return ""
	}
	defer m.close()
	version, err := m.driverVersion()
	if err != nil {
		return ""
	}
	return version
}

// cudaVersionText formats a version: 12090 as 12.9.
func cudaVersionText(version int) string {
	return fmt.Sprintf("%d.%d", version/1000, version%1000/10)
}

// initAdvice holds advice for errors of cuInit.
var initAdvice = map[cuda.Code]string{
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

func judgeDriver(f *Facts, s *Section) {
	d := &f.Driver
	level := Fail
	if f.RequestedBackend == "auto" && len(f.GPUs) == 0 {
		level = Warn
	}
	switch {
	case d.NotInstalled:
		s.add(level, "install NVIDIA's driver, or start the container with GPUs; symmem --backend "+
			"host needs none", "no GPU can be used: %s", d.Error)
		return
	case d.Error != "":
		advice, ok := initAdvice[cuda.Code(d.Code)]
		if !ok {
			advice = "look for the GPUs in the output of nvidia-smi and the kernel's log (dmesg)"
		}
		s.add(level, advice, "the driver finds no working GPU: %s", d.Error)
		return
	}
	version := "of unknown version"
	if d.Version != "" {
		version = d.Version
	}
	s.ok("driver %s for CUDA %s, %s", version, cudaVersionText(d.CUDA), d.Path)
	if d.CUDA < vmmCUDAVersion {
		s.add(Warn, "install a driver for CUDA 12.0 or newer", "NCCL does not use virtual memory "+
			"management with a driver for CUDA %s, so it cannot create windows",
			cudaVersionText(d.CUDA))
	}
}
