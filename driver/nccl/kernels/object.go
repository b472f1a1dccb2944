package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"sync"
)

// objects holds the objects that make.sh compiled from each source, by architecture.
//
//go:embed objects
var objects embed.FS

// Object returns the code of the collectives for a GPU of a compute capability, such as 9, 0: a
// binary if there is one of its generation, else PTX, which the driver compiles. GPUs before 8.0
// are too old. It ends with a zero, as CUDA wants PTX to. All callers share the same bytes, and
// must not change them.
func Object(major, minor int) ([]byte, error) { return objectOf("collectives", major, minor) }

func objectOf(source string, major, minor int) ([]byte, error) {
	if major < 8 {
		return nil, fmt.Errorf("%w for GPUs of compute capability %d.%d: 8.0 is the first", errNone,
			major, minor)
	}
	name := "objects/" + source + "." + architectureOf(major) + ".gz"
	object, _ := unpacked.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		return unpack(name)
	}))
	return object.(func() ([]byte, error))()
}

// binaries are the generations that have one. Those run on all later GPUs of the same generation:
// sm_80 on 8.6 and 8.9, sm_100 on 10.3, sm_120 on 12.1.
var binaries = map[int]string{8: "sm_80", 9: "sm_90", 10: "sm_100", 12: "sm_120"}

// architectureOf names the object of a generation.
func architectureOf(major int) string {
	if binary, has := binaries[major]; has {
		return binary
	}
	return "compute_90"
}

// Wait reports whether the kernels for GPUs of a generation wait for those ahead of them in the
// stream (griddepcontrol.wait). Only these may be launched to overlap: others would read what is
// not written yet.
func Wait(major int) bool { return architectureOf(major) != "sm_80" }

// unpacked holds, for each object that was asked for, a function that unpacks it once. Unpacking
// takes 20 ms, and a dozen times as long under the race detector; without this each rank of a
// process would do it, each time that it opens a device.
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
