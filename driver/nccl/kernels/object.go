package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"sync"
)

// objects are what make.sh made of each source, by architecture.
//
//go:embed objects
var objects embed.FS

// Object returns the code of the collectives for a GPU of a compute capability, such as 9, 0: a
// binary if there is one of its generation, else PTX, which the driver compiles. GPUs before 8.0
// are too old. It ends with a zero, as CUDA wants PTX to. All who ask have the same bytes, which
// nobody may change.
func Object(major, minor int) ([]byte, error) { return objectOf("collectives", major, minor) }

// ProductObject is Object for products.
func ProductObject(major, minor int) ([]byte, error) { return objectOf("product", major, minor) }

func objectOf(source string, major, minor int) ([]byte, error) {
	if major < 8 {
		return nil, fmt.Errorf("%w for GPUs of compute capability %d.%d: 8.0 is the first", errNone,
			major, minor)
	}
	// Binaries run on later GPUs of the same generation alone.
	architecture := "compute_80"
	switch major {
	case 8, 9:
		architecture = fmt.Sprintf("sm_%d0", major)
	}
	name := "objects/" + source + "." + architecture + ".gz"
	object, _ := unpacked.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		return unpack(name)
	}))
	return object.(func() ([]byte, error))()
}

// unpacked holds a function for each object that somebody asked for, which unpacks it once: that
// takes 20 ms, in every rank of a process and every time that a device is opened anew, and a dozen
// times as long under the race detector.
var unpacked sync.Map

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
