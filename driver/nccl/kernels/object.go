package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"sync"
)

//go:embed objects
var objects embed.FS

// Object returns the compiled collectives for a compute capability. If there is no cubin for the
// GPU's generation, Object returns PTX. It returns an error for GPUs before 8.0. All callers share
// the bytes and must not modify them.
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

// binaries maps each GPU generation (major compute capability) to the architecture of its cubin.
var binaries = map[int]string{8: "sm_80", 9: "sm_90", 10: "sm_100", 12: "sm_120"}

func architecture(major int) string {
	if cubin, ok := binaries[major]; ok {
		return cubin
	}
	return "compute_90"
}

// CanOverlap reports whether the kernels for a GPU generation contain the instruction that waits
// for earlier kernels in the stream (griddepcontrol.wait), so that they may start early.
func CanOverlap(major int) bool { return architecture(major) != "sm_80" }

// unpackers maps an object's name to a function that unpacks it once for all ranks of the process,
// because unpacking takes 20 ms.
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
	return append(object, 0), nil // CUDA requires the zero byte at the end of PTX
}
