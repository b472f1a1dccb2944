package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

const (
	// Addresses and sizes have bits above the 32nd, so that truncated arguments are detected.
	address      uintptr = 0x7fab_cdef_0000
	otherAddress uintptr = 0x7012_3456_0000
	big          int64   = 5 << 33
	stream       Stream  = 0x7700_0000_0010
	event        Event   = 0x7700_0000_0020
	anyAddress           = int64(-1 << 62) // matches any address except 0
)

var nodes = []Node{Node(address), Node(otherAddress)}

// calls holds a call of each method that returns only an error. Methods that return a value are in
// results.
var calls = map[string]struct {
	call func(d *Driver) error
	name string  // C function that the method must call
	args []int64 // arguments that the C function must get
}{
	"releasing a primary context": {
		func(d *Driver) error { return device(d, 3).ReleasePrimary() },
		"cuDevicePrimaryCtxRelease_v2",
		[]int64{3},
	},
	"setting the current context": {
		func(d *Driver) error { return d.SetCurrent(Context(address)) },
		"cuCtxSetCurrent",
		[]int64{int64(address)},
	},
	"freeing an address range": {
		func(d *Driver) error { return d.AddressFree(address, big) },
		"cuMemAddressFree",
		[]int64{int64(address), big},
	},
	"releasing an allocation": {
		func(d *Driver) error { return d.Release(Handle(address)) },
		"cuMemRelease",
		[]int64{int64(address)},
	},
	"mapping": {
		func(d *Driver) error { return d.Map(address, big, Handle(otherAddress)) },
		"cuMemMap",
		[]int64{int64(address), big, 0, int64(otherAddress), 0},
	},
	"unmapping": {
		func(d *Driver) error { return d.Unmap(address, big) },
		"cuMemUnmap",
		[]int64{int64(address), big},
	},
	"copying": {
		func(d *Driver) error { return d.MemcpyAsync(address, otherAddress, big, stream) },
		"cuMemcpyAsync",
		[]int64{int64(address), int64(otherAddress), big, int64(stream)},
	},
	"filling": {
		func(d *Driver) error { return d.MemsetD8Async(address, 0xab, big, stream) },
		"cuMemsetD8Async",
		[]int64{int64(address), 0xab, big, int64(stream)},
	},
	"freeing memory in stream order": {
		func(d *Driver) error { return d.MemFreeAsync(address, stream) },
		"cuMemFreeAsync",
		[]int64{int64(address), int64(stream)},
	},
	"freeing host memory": {
		func(d *Driver) error { return d.MemFreeHost(address) },
		"cuMemFreeHost",
		[]int64{int64(address)},
	},
	"registering host memory": {
		func(d *Driver) error { return d.MemHostRegister(address, big) },
		"cuMemHostRegister_v2",
		[]int64{int64(address), big, 3},
	},
	"unregistering host memory": {
		func(d *Driver) error { return d.MemHostUnregister(address) },
		"cuMemHostUnregister",
		[]int64{int64(address)},
	},
	"destroying a stream": {
		func(d *Driver) error { return d.StreamDestroy(stream) },
		"cuStreamDestroy_v2",
		[]int64{int64(stream)},
	},
	"synchronizing a stream": {
		func(d *Driver) error { return d.StreamSynchronize(stream) },
		"cuStreamSynchronize",
		[]int64{int64(stream)},
	},
	"querying a stream": {
		func(d *Driver) error { return errIfFalse(d.StreamQuery(stream)) },
		"cuStreamQuery",
		[]int64{int64(stream)},
	},
	"making a stream wait": {
		func(d *Driver) error { return d.StreamWaitEvent(stream, event) },
		"cuStreamWaitEvent",
		[]int64{int64(stream), int64(event), 0},
	},
	"making a graph wait": {
		func(d *Driver) error { return d.StreamWaitEventExternal(stream, event) },
		"cuStreamWaitEvent",
		[]int64{int64(stream), int64(event), 1},
	},
	"beginning a capture": {
		func(d *Driver) error { return d.BeginCapture(stream, CaptureRelaxed) },
		"cuStreamBeginCapture_v2",
		[]int64{int64(stream), 2},
	},
	"waiting for a word of memory": {
		func(d *Driver) error { return d.StreamWaitValue(stream, address, 1<<31+5, WaitEqual) },
		"cuStreamWaitValue32_v2",
		[]int64{int64(stream), int64(address), 1<<31 + 5, 1},
	},
	"writing a word of memory": {
		func(d *Driver) error { return d.StreamWriteValue(stream, address, 1<<31+7) },
		"cuStreamWriteValue32_v2",
		[]int64{int64(stream), int64(address), 1<<31 + 7, 0},
	},
	"recording an event": {
		func(d *Driver) error { return d.EventRecord(event, stream) },
		"cuEventRecord",
		[]int64{int64(event), int64(stream)},
	},
	"querying an event": {
		func(d *Driver) error { return errIfFalse(d.EventQuery(event)) },
		"cuEventQuery",
		[]int64{int64(event)},
	},
	"destroying an event": {
		func(d *Driver) error { return d.EventDestroy(event) },
		"cuEventDestroy_v2",
		[]int64{int64(event)},
	},
	"launching a graph": {
		func(d *Driver) error { return d.GraphLaunch(GraphExec(address), stream) },
		"cuGraphLaunch",
		[]int64{int64(address), int64(stream)},
	},
	"destroying an instantiated graph": {
		func(d *Driver) error { return d.GraphExecDestroy(GraphExec(address)) },
		"cuGraphExecDestroy",
		[]int64{int64(address)},
	},
	"adding dependencies to a capture": {
		func(d *Driver) error { return d.AddCaptureDependencies(stream, nodes) },
		"cuStreamUpdateCaptureDependencies",
		[]int64{int64(stream), anyAddress, 2, 0},
	},
	"adding dependencies to a graph": {
		func(d *Driver) error { return d.GraphAddDependencies(Graph(address), nodes, nodes) },
		"cuGraphAddDependencies",
		[]int64{int64(address), anyAddress, anyAddress, 2},
	},
	"removing dependencies from a graph": {
		func(d *Driver) error { return d.GraphRemoveDependencies(Graph(address), nodes, nodes) },
		"cuGraphRemoveDependencies",
		[]int64{int64(address), anyAddress, anyAddress, 2},
	},
	"destroying a graph": {
		func(d *Driver) error { return d.GraphDestroy(Graph(address)) },
		"cuGraphDestroy",
		[]int64{int64(address)},
	},
	"unloading a module": {
		func(d *Driver) error { return d.ModuleUnload(Module(address)) },
		"cuModuleUnload",
		[]int64{int64(address)},
	},
	"launching an overlapping kernel": {
		func(d *Driver) error {
			return d.LaunchOverlapping(Function(address), 7, 512, stream, &Params{})
		},
		"cuLaunchKernelEx",
		[]int64{anyAddress, int64(address), 0, anyAddress},
	},
	"launching a kernel": {
		func(d *Driver) error { return d.LaunchKernel(Function(address), 1<<20, 512, stream, &Params{}) },
		"cuLaunchKernel",
		[]int64{int64(address), 1 << 20, 1, 1, 512, 1, 1, 0, int64(stream), 0, anyAddress},
	},
}

func device(d *Driver, handle int32) Device { return Device{d, handle, handle} }

func errIfFalse(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("the method returned false")
	}
	return err
}

func TestMethodsPassAllArguments(t *testing.T) {
	driver, recorder := load(t, declarations)
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			recorder.Reset()
			if err := c.call(driver); err != nil {
				t.Fatal(err)
			}
			got := recorder.LastCall()
			isSame := slices.EqualFunc(got.Args, c.args, func(got, want int64) bool {
				return got == want || want == anyAddress && got != 0
			})
			if got.Name != c.name || !isSame {
				t.Errorf("called %s%#x, want %s%#x", got.Name, got.Args, c.name, c.args)
			}
			recorder.SetResult(2)
			var typed *Error
			if err := c.call(driver); !errors.As(err, &typed) || typed.Call != c.name {
				t.Errorf("got error %v, want one from %s", err, c.name)
			}
		})
	}
}
