package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"symmem/internal/dl"
)

func words64(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.NativeEndian.AppendUint64(b, v)
	}

	return b
}

func word32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func format[T any](v T, err error) string {
	if err != nil {
		return err.Error()
	}

	return fmt.Sprint(v)
}

// results lists methods that return a value. index is the index of the argument that points to
// the memory where the C function writes output.
var results = map[string]struct {
	call   func(d *Driver) string
	index  int
	output []byte
	want   string
	name   string
	args   []int64
}{
	"the version": {
		func(d *Driver) string { return format(d.Version()) },
		0, word32(12090), "12090", "cuDriverGetVersion",
		[]int64{anyAddress},
	},
	"the number of devices": {
		func(d *Driver) string { return format(d.DeviceCount()) },
		0, word32(8), "8", "cuDeviceGetCount",
		[]int64{anyAddress},
	},
	"a device": {
		func(d *Driver) string {
			v, err := d.Device(2)
			return format([]int{v.Ordinal(), int(v.handle)}, err)
		},
		0, word32(5), "[2 5]", "cuDeviceGet",
		[]int64{anyAddress, 2},
	},
	"a name": {
		func(d *Driver) string { return format(device(d, 3).Name()) },
		0, []byte("NVIDIA H200\x00junk"), "NVIDIA H200", "cuDeviceGetName",
		[]int64{anyAddress, 128, 3},
	},
	"a PCI address": {
		func(d *Driver) string { return format(device(d, 3).PCIBusID()) },
		0, []byte("0000:1b:00.0\x00"), "0000:1b:00.0", "cuDeviceGetPCIBusId",
		[]int64{anyAddress, 128, 3},
	},
	"a device's UUID": {
		func(d *Driver) string { return format(device(d, 3).UUID()) },
		0, []byte("\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77"),
		"01234567-89ab-cdef-0011-223344556677", "cuDeviceGetUuid",
		[]int64{anyAddress, 3},
	},
	"a device's memory": {
		func(d *Driver) string { return format(device(d, 3).TotalMem()) },
		0, words64(141 << 30), "151397597184", "cuDeviceTotalMem_v2",
		[]int64{anyAddress, 3},
	},
	"an attribute": {
		func(d *Driver) string { return format(device(d, 3).Attribute(AttributeFabricSupported)) },
		0, word32(1), "1", "cuDeviceGetAttribute",
		[]int64{anyAddress, 128, 3},
	},
	"a compute capability": {
		func(d *Driver) string {
			major, minor, err := device(d, 3).ComputeCapability()
			return format([]int{major, minor}, err)
		},
		0, word32(9), "[9 9]", "cuDeviceGetAttribute",
		[]int64{anyAddress, 76, 3},
	},
	"peer access": {
		func(d *Driver) string { return format(device(d, 3).CanAccessPeer(device(d, 4))) },
		0, word32(1), "true", "cuDeviceCanAccessPeer",
		[]int64{anyAddress, 3, 4},
	},
	"a property of a link": {
		func(d *Driver) string {
			return format(device(d, 3).P2PAttribute(P2PNativeAtomicSupported, device(d, 4)))
		},
		0, word32(1), "1", "cuDeviceGetP2PAttribute",
		[]int64{anyAddress, 3, 3, 4},
	},
	"a primary context": {
		func(d *Driver) string { return format(device(d, 3).RetainPrimary()) },
		0, words64(1 << 40), "1099511627776", "cuDevicePrimaryCtxRetain",
		[]int64{anyAddress, 3},
	},
	"the current context": {
		func(d *Driver) string { return format(d.Current()) },
		0, words64(1 << 40), "1099511627776", "cuCtxGetCurrent",
		[]int64{anyAddress},
	},
	"free memory": {
		func(d *Driver) string { free, _, err := d.MemGetInfo(); return format(free, err) },
		0, words64(1 << 36), "68719476736", "cuMemGetInfo_v2",
		[]int64{anyAddress, anyAddress},
	},
	"total memory": {
		func(d *Driver) string { _, total, err := d.MemGetInfo(); return format(total, err) },
		1, words64(1 << 37), "137438953472", "cuMemGetInfo_v2",
		[]int64{anyAddress, anyAddress},
	},
	"an address range": {
		func(d *Driver) string { return format(d.AddressReserve(big, 2<<20)) },
		0, words64(1 << 46), "70368744177664", "cuMemAddressReserve",
		[]int64{anyAddress, big, 2 << 20, 0, 0},
	},
	"a mapped address": {
		func(d *Driver) string { return format(true, d.CheckAddress(address)) },
		0, words64(1 << 40), "true", "cuMemGetAddressRange_v2",
		[]int64{anyAddress, 0, int64(address)},
	},
	"the handle of a mapping": {
		func(d *Driver) string { return format(d.Retain(address)) },
		0, words64(1 << 40), "1099511627776", "cuMemRetainAllocationHandle",
		[]int64{anyAddress, int64(address)},
	},
	"a file descriptor": {
		func(d *Driver) string { return format(d.ExportFD(Handle(address))) },
		0, word32(17), "17", "cuMemExportToShareableHandle",
		[]int64{anyAddress, int64(address), 1, 0},
	},
	"an imported handle": {
		func(d *Driver) string { return format(d.ImportFD(17)) },
		0, words64(1 << 40), "1099511627776", "cuMemImportFromShareableHandle",
		[]int64{anyAddress, 17, 1},
	},
	"memory in stream order": {
		func(d *Driver) string { return format(d.MemAllocAsync(big, stream)) },
		0, words64(1 << 40), "1099511627776", "cuMemAllocAsync",
		[]int64{anyAddress, big, int64(stream)},
	},
	"host memory": {
		func(d *Driver) string { return format(d.MemAllocHost(big)) },
		0, words64(1 << 40), "1099511627776", "cuMemAllocHost_v2",
		[]int64{anyAddress, big},
	},
	"a stream": {
		func(d *Driver) string { return format(d.StreamCreate()) },
		0, words64(1 << 40), "1099511627776", "cuStreamCreate",
		[]int64{anyAddress, 1},
	},
	"the device address of host memory": {
		func(d *Driver) string { return format(d.MemHostDeviceAddress(address)) },
		0, words64(1 << 40), "1099511627776", "cuMemHostGetDevicePointer_v2",
		[]int64{anyAddress, int64(address), 0},
	},
	"a graph": {
		func(d *Driver) string { return format(d.EndCapture(stream)) },
		1, words64(1 << 40), "1099511627776", "cuStreamEndCapture",
		[]int64{int64(stream), anyAddress},
	},
	"a capture's state": {
		func(d *Driver) string { return format(d.CaptureStatus(stream)) },
		1, word32(2), "2", "cuStreamIsCapturing",
		[]int64{int64(stream), anyAddress},
	},
	"no ID without a capture": {
		func(d *Driver) string {
			c, err := d.CaptureInfo(stream)
			return format([]uint64{uint64(c.Status), c.ID, uint64(c.Graph)}, err)
		},
		2, words64(77), "[0 0 0]", "cuStreamGetCaptureInfo_v2",
		[]int64{int64(stream), anyAddress, anyAddress, anyAddress, anyAddress, anyAddress},
	},
	"a node that records an event": {
		func(d *Driver) string {
			return format(d.GraphAddEventRecord(Graph(otherAddress), nodes, event))
		},
		0, words64(1 << 40), "1099511627776", "cuGraphAddEventRecordNode",
		[]int64{anyAddress, int64(otherAddress), anyAddress, 2, int64(event)},
	},
	"the previous capture mode": {
		func(d *Driver) string { return format(d.ThreadExchangeCaptureMode(CaptureRelaxed)) },
		0, word32(1), "1", "cuThreadExchangeStreamCaptureMode",
		[]int64{anyAddress},
	},
	"an event": {
		func(d *Driver) string { return format(d.EventCreate(EventDisableTiming)) },
		0, words64(1 << 40), "1099511627776", "cuEventCreate",
		[]int64{anyAddress, 2},
	},
	"the time between events": {
		func(d *Driver) string { return format(d.EventElapsedTime(event, Event(otherAddress))) },
		0, word32(math.Float32bits(2.5)), (2500 * time.Microsecond).String(), "cuEventElapsedTime",
		[]int64{anyAddress, int64(event), int64(otherAddress)},
	},
	"an instantiated graph": {
		func(d *Driver) string { return format(d.GraphInstantiate(Graph(address))) },
		0, words64(1 << 40), "1099511627776", "cuGraphInstantiateWithFlags",
		[]int64{anyAddress, int64(address), 0},
	},
	"a module": {
		func(d *Driver) string { return format(d.ModuleLoadData([]byte(".version 8.0\x00"))) },
		0, words64(1 << 40), "1099511627776", "cuModuleLoadData",
		[]int64{anyAddress, anyAddress},
	},
	"a kernel": {
		func(d *Driver) string { return format(d.ModuleGetFunction(Module(address), "spin")) },
		0, words64(1 << 40), "1099511627776", "cuModuleGetFunction",
		[]int64{anyAddress, int64(address), anyAddress},
	},
}

func TestMethodsReturnCompleteResults(t *testing.T) {
	driver, recorder := load(t, declarations)
	for name, c := range results {
		t.Run(name, func(t *testing.T) {
			recorder.Reset()
			recorder.SetOutput(c.index, c.output)
			if got := c.call(driver); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}

			got := recorder.LastCall()
			same := slices.EqualFunc(got.Args, c.args, func(got, want int64) bool {
				return got == want || want == anyAddress && got != 0
			})
			if got.Name != c.name || !same {
				t.Errorf("called %s%#x, want %s%#x", got.Name, got.Args, c.name, c.args)
			}
		})
	}
}

func TestAllFunctionsAreTested(t *testing.T) {
	tested := map[string]bool{
		"cuInit": true, "cuGetErrorName": true, "cuGetErrorString": true, // called by Load, newError
		"cuMemGetAllocationGranularity": true, "cuMemCreate": true, "cuMemSetAccess": true,
		"cuLaunchHostFunc": true, "cuDeviceGetUuid_v2": true, "cuStreamGetCaptureInfo_v3": true,
		"cuGraphAddDependencies_v2": true, "cuGraphRemoveDependencies_v2": true,
		"cuStreamUpdateCaptureDependencies_v2": true, "cuModuleGetFunctionCount": true,
		"cuModuleEnumerateFunctions": true, "cuFuncLoad": true,
		"cuUserObjectCreate": true, "cuUserObjectRelease": true, "cuGraphRetainUserObject": true,
	}
	for _, c := range calls {
		tested[c.name] = true
	}

	for _, c := range results {
		tested[c.name] = true
	}

	for _, name := range names {
		if !tested[name] {
			t.Errorf("no test calls %s", name)
		}
	}
}

func TestDriverPrefersNewerFunctions(t *testing.T) {
	driver, recorder := load(t, declarations+newerDeclarations)
	recorder.SetOutput(0, bytes.Repeat([]byte{0xab}, 16))
	if got := format(device(driver, 0).UUID()); got != "abababab-abab-abab-abab-abababababab" {
		t.Errorf("UUID() = %s, want bytes that are all ab", got)
	}

	if got := recorder.LastCall().Name; got != "cuDeviceGetUuid_v2" {
		t.Errorf("called %s, want cuDeviceGetUuid_v2", got)
	}

	graph := Graph(address)
	for name, call := range map[string]func() error{
		"cuGraphAddDependencies_v2": func() error {
			return driver.GraphAddDependencies(graph, nodes, nodes)
		},
		"cuGraphRemoveDependencies_v2": func() error {
			return driver.GraphRemoveDependencies(graph, nodes, nodes)
		},
		"cuStreamUpdateCaptureDependencies_v2": func() error {
			return driver.AddCaptureDependencies(stream, nodes)
		},
	} {
		recorder.Reset()
		if err := call(); err != nil || recorder.LastCall().Name != name {
			t.Errorf("called %s with error %v, want %s with nil", recorder.LastCall().Name, err, name)
		}
	}
}

func TestCaptureInfoIsComplete(t *testing.T) {
	driver, recorder := load(t, declarations+newerDeclarations)
	recorder.SetOutput(1, word32(1))
	recorder.SetOutput(2, words64(77))
	recorder.SetOutput(3, words64(uint64(address)))
	recorder.SetOutput(4, words64(uint64(dl.AddressOf(&nodes[0]))))
	recorder.SetOutput(6, words64(2))
	got, err := driver.CaptureInfo(stream)
	want := Capture{Status: CaptureActive, ID: 77, Graph: Graph(address), Dependencies: nodes}
	if !reflect.DeepEqual(got, want) || err != nil {
		t.Errorf("CaptureInfo = %+v, %v; want %+v", got, err, want)
	}

	if name := recorder.LastCall().Name; name != "cuStreamGetCaptureInfo_v3" {
		t.Errorf("called %s, want cuStreamGetCaptureInfo_v3", name)
	}
}
