package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"sync"
)

// objects contains the compressed output of make.sh for each source file and architecture.
//
//go:embed objects
var objects embed.FS

// Object returns the compiled collectives for a compute capability. The code is a cubin if there is
// one for the GPU's generation. Otherwise it is PTX, which the driver compiles. Object returns an
// error for GPUs before 8.0. CUDA requires that PTX end with a zero byte, so the code always does.
// All callers share the bytes and must not modify them.
func Object(major, minor int) ([]byte, error) { return loadObject("collectives", major, minor) }

// RowsObject returns the compiled kernels of Rows, as Object does for other collectives.
func RowsObject(major, minor int) ([]byte, error) { return loadObject("rows", major, minor) }

// NormObject returns the compiled norm kernels, as Object does for other collectives.
func NormObject(major, minor int) ([]byte, error) { return loadObject("norm", major, minor) }

func loadObject(source string, major, minor int) ([]byte, error) {
	if major < 8 {
		return nil, fmt.Errorf("%w for GPUs of compute capability %d.%d: 8.0 or later is required",
			errNoKernel, major, minor)
	}
	name := "objects/" + source + "." + architecture(major) + ".gz"
	object, _ := unpackers.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		return unpack(name)
	}))
	return object.(func() ([]byte, error))()
}

// binaries maps generations of GPUs to the architectures of cubins. A cubin runs on all later GPUs
// of its generation: sm_80 on 8.6 and 8.9, sm_100 on 10.3, sm_120 on 12.1.
var binaries = map[int]string{8: "sm_80", 9: "sm_90", 10: "sm_100", 12: "sm_120"}

// architecture returns the architecture of the object for a generation.
func architecture(major int) string {
	if cubin, ok := binaries[major]; ok {
		return cubin
	}
	return "compute_90"
}

// Wait reports whether the kernels for a generation wait for earlier kernels in the stream
// (griddepcontrol.wait). Kernels that do not wait must not be launched to overlap, because they
// would read data that is not written yet.
func Wait(major int) bool { return architecture(major) != "sm_80" }

// unpackers maps an object's name to a function that unpacks the object at its first call. Each
// rank of a process needs an object when it opens a device. Unpacking takes 20 ms, and twelve times
// as long under the race detector.
var unpackers sync.Map

func unpack(name string) ([]byte, error) {
	packed, err := objects.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading a kernel object: %w", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", name, err)
	}
	object, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", name, err)
	}
	return append(object, 0), nil
}
