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

// Object returns the compiled collectives for a compute capability of at least 8.0, as a cubin or,
// for unknown generations, as PTX. Callers must not modify the bytes.
func Object(major, minor int) ([]byte, error) { return loadObject("collectives", major, minor) }

// RowsObject is Object for the kernels of Rows.
func RowsObject(major, minor int) ([]byte, error) { return loadObject("rows", major, minor) }

// NormObject is Object for norm kernels.
func NormObject(major, minor int) ([]byte, error) { return loadObject("norm", major, minor) }

// RouteObject is Object for the kernels of Dispatch and Combine.
func RouteObject(major, minor int) ([]byte, error) { return loadObject("route", major, minor) }

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

// binaries is indexed by GPU generation (major compute capability).
var binaries = map[int]string{8: "sm_80", 9: "sm_90", 10: "sm_100", 12: "sm_120"}

func architecture(major int) string {
	if cubin, ok := binaries[major]; ok {
		return cubin
	}

	return "compute_90"
}

// CanOverlap reports whether the kernels for a GPU generation may start early, because they wait
// for earlier kernels (griddepcontrol.wait).
func CanOverlap(major int) bool { return architecture(major) != "sm_80" }

// unpackers maps an object's name to a function that unpacks it once per process, in 20 ms.
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
