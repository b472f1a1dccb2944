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
	// Path is the file of libcuda, and CUDA the newest CUDA version that it supports, such as
	// 12090.
	Path string `json:"path,omitempty"`
	CUDA int    `json:"cuda,omitempty"`
	// Version is the version of the driver, such as 580.159, or empty if unknown.
	Version string `json:"version,omitempty"`
	// IMEXChannels is the number of channels that the process sees. Without one, GPUs refuse fabric
	// handles.
	IMEXChannels int `json:"imex_channels"`
	// Error is the reason why there is no driver, or no GPU. None reports whether CUDA is not
	// installed at all; otherwise Code is CUDA's result.
	Error string `json:"error,omitempty"`
	None  bool   `json:"none,omitempty"`
	Code  int    `json:"code,omitempty"`
}

// cudaVersion is the first version whose driver NCCL uses virtual memory management with, 12.0.
const cudaVersion = 12000

// LookAtDriver loads CUDA and lists the GPUs. It creates no context.
func LookAtDriver() (Driver, []GPU) {
	d := Driver{Version: kernelModule()}
	library, err := cuda.Load()
	if err != nil {
		d.fail(err)
		return d, nil
	}
	d.Path = library.Path()
	if d.Version == "" {
		d.Version = nvmlVersion()
	}
	if d.CUDA, err = library.Version(); err != nil {
		d.fail(err)
	}
	d.IMEXChannels = channels()
	gpus, err := lookAtGPUs(library)
	if err != nil {
		d.fail(err)
	}
	return d, gpus
}

func (d *Driver) fail(err error) {
	d.Error, d.None = err.Error(), errors.Is(err, cuda.ErrNoDriver)
	if code, ok := errors.AsType[cuda.Code](err); ok {
		d.Code = int(code)
	}
}

// channels counts the device files of IMEX channels.
func channels() int {
	files, _ := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*") // the pattern is valid
	return len(files)
}

// moduleVersion matches the version in the text of the kernel module.
var moduleVersion = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

// kernelModule returns the driver's version as reported by the kernel module.
func kernelModule() string {
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

// nvmlVersion returns the driver's version as reported by NVML, for containers without the
// kernel's files.
func nvmlVersion() string {
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

// cudaText formats a version: 12090 is 12.9.
func cudaText(version int) string {
	return fmt.Sprintf("%d.%d", version/1000, version%1000/10)
}

// startingAdvice maps results of cuInit to advice.
var startingAdvice = map[cuda.Code]string{
	cuda.ErrNoDevice: "see whether nvidia-smi shows a GPU, whether the container was started with " +
		"GPUs, and check CUDA_VISIBLE_DEVICES",
	cuda.ErrSystemNotReady: "start the fabric manager (systemctl start nvidia-fabricmanager), whose " +
		"version is that of the driver",
	cuda.ErrSystemDriverMismatch: "libcuda and the kernel's module have different versions: restart " +
		"the machine after a change of drivers, or repair the container's mounts",
	cuda.ErrStubLibrary: "the loader finds the stub of the CUDA toolkit: take its folder off " +
		"LD_LIBRARY_PATH",
	cuda.ErrCompatNotSupportedOnDevice: "take the folder of CUDA's compatibility package off " +
		"LD_LIBRARY_PATH: this GPU needs the driver's own libcuda",
}

func judgeDriver(f *Facts, s *Section) {
	d := &f.Driver
	level := Fail
	if f.Asked == "auto" && len(f.GPUs) == 0 {
		level = Warn
	}
	switch {
	case d.None:
		s.add(level, "install NVIDIA's driver, or start the container with GPUs; symmem --backend "+
			"host needs none", "no GPU can be used: %s", d.Error)
		return
	case d.Error != "":
		advice, ok := startingAdvice[cuda.Code(d.Code)]
		if !ok {
			advice = "look for the GPUs in the output of nvidia-smi and the kernel's log (dmesg)"
		}
		s.add(level, advice, "the driver shows no GPU that works: %s", d.Error)
		return
	}
	version := "of unknown version"
	if d.Version != "" {
		version = d.Version
	}
	s.ok("driver %s for CUDA %s, %s", version, cudaText(d.CUDA), d.Path)
	if d.CUDA < cudaVersion {
		s.add(Warn, "install a driver for CUDA 12.0 or newer", "NCCL makes no windows with a driver "+
			"for CUDA %s: it does not use virtual memory management there", cudaText(d.CUDA))
	}
}
