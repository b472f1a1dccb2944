package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// Arbitrary arguments that do not fit into 32 bits, so that the tests detect truncation. The
// recorder that replaces libcuda does not dereference them.
const (
	address      uintptr = 0x7fab_cdef_0000
	otherAddress uintptr = 0x7012_3456_0000
	big          int64   = 5 << 33 // bytes
	stream       Stream  = 0x7700_0000_0010
	event        Event   = 0x7700_0000_0020
)

const deviceHandle = 3 // arbitrary

var nodes = []Node{Node(address), Node(otherAddress)}

// anyAddress, as an expected argument, matches any address except 0.
const anyAddress = int64(-1 << 62) // differs from all arguments

// calls has one entry for each method that returns only an error, or a bool and an error.
var calls = map[string]struct {
	call func(d *Driver) error
	name string  // C function that call calls
	args []int64 // arguments of the C function
}{
	"releasing a primary context": {
		call: func(d *Driver) error { return device(d, deviceHandle).ReleasePrimary() },
		name: "cuDevicePrimaryCtxRelease_v2",
		args: []int64{deviceHandle},
	},
	"setting the current context": {
		call: func(d *Driver) error { return d.SetCurrent(Context(address)) },
		name: "cuCtxSetCurrent",
		args: []int64{int64(address)},
	},
	"freeing an address range": {
		call: func(d *Driver) error { return d.AddressFree(address, big) },
		name: "cuMemAddressFree",
		args: []int64{int64(address), big},
	},
	"releasing an allocation": {
		call: func(d *Driver) error { return d.Release(Handle(address)) },
		name: "cuMemRelease",
		args: []int64{int64(address)},
	},
	"mapping": {
		call: func(d *Driver) error { return d.Map(address, big, Handle(otherAddress)) },
		name: "cuMemMap",
		args: []int64{int64(address), big, 0, int64(otherAddress), 0}, // offset 0, no flags
	},
	"unmapping": {
		call: func(d *Driver) error { return d.Unmap(address, big) },
		name: "cuMemUnmap",
		args: []int64{int64(address), big},
	},
	"copying": {
		call: func(d *Driver) error { return d.MemcpyAsync(address, otherAddress, big, stream) },
		name: "cuMemcpyAsync",
		args: []int64{int64(address), int64(otherAddress), big, int64(stream)},
	},
	"filling": {
		call: func(d *Driver) error { return d.MemsetD8Async(address, 0xab, big, stream) },
		name: "cuMemsetD8Async",
		args: []int64{int64(address), 0xab, big, int64(stream)},
	},
	"freeing memory in stream order": {
		call: func(d *Driver) error { return d.MemFreeAsync(address, stream) },
		name: "cuMemFreeAsync",
		args: []int64{int64(address), int64(stream)},
	},
	"freeing host memory": {
		call: func(d *Driver) error { return d.MemFreeHost(address) },
		name: "cuMemFreeHost",
		args: []int64{int64(address)},
	},
	"registering host memory": {
		call: func(d *Driver) error { return d.MemHostRegister(address, big) },
		name: "cuMemHostRegister_v2",
		args: []int64{int64(address), big, 3}, // flags: portable and mapped for devices
	},
	"unregistering host memory": {
		call: func(d *Driver) error { return d.MemHostUnregister(address) },
		name: "cuMemHostUnregister",
		args: []int64{int64(address)},
	},
	"destroying a stream": {
		call: func(d *Driver) error { return d.StreamDestroy(stream) },
		name: "cuStreamDestroy_v2",
		args: []int64{int64(stream)},
	},
	"synchronizing a stream": {
		call: func(d *Driver) error { return d.StreamSynchronize(stream) },
		name: "cuStreamSynchronize",
		args: []int64{int64(stream)},
	},
	"querying a stream": {
		call: func(d *Driver) error { return errIfFalse(d.StreamQuery(stream)) },
		name: "cuStreamQuery",
		args: []int64{int64(stream)},
	},
	"making a stream wait": {
		call: func(d *Driver) error { return d.StreamWaitEvent(stream, event) },
		name: "cuStreamWaitEvent",
		args: []int64{int64(stream), int64(event), 0}, // no flags
	},
	"making a graph wait": {
		call: func(d *Driver) error { return d.StreamWaitEventExternal(stream, event) },
		name: "cuStreamWaitEvent",
		args: []int64{int64(stream), int64(event), 1}, // flag: external to the graph
	},
	"beginning a capture": {
		call: func(d *Driver) error { return d.BeginCapture(stream, CaptureRelaxed) },
		name: "cuStreamBeginCapture_v2",
		args: []int64{int64(stream), 2}, // mode: relaxed
	},
	"waiting for a word of memory": {
		call: func(d *Driver) error { return d.StreamWaitValue(stream, address, 1<<31+5, WaitEqual) },
		name: "cuStreamWaitValue32_v2",
		args: []int64{int64(stream), int64(address), 1<<31 + 5, 1}, // flag: equal
	},
	"writing a word of memory": {
		call: func(d *Driver) error { return d.StreamWriteValue(stream, address, 1<<31+7) },
		name: "cuStreamWriteValue32_v2",
		args: []int64{int64(stream), int64(address), 1<<31 + 7, 0}, // no flags
	},
	"recording an event": {
		call: func(d *Driver) error { return d.EventRecord(event, stream) },
		name: "cuEventRecord",
		args: []int64{int64(event), int64(stream)},
	},
	"querying an event": {
		call: func(d *Driver) error { return errIfFalse(d.EventQuery(event)) },
		name: "cuEventQuery",
		args: []int64{int64(event)},
	},
	"destroying an event": {
		call: func(d *Driver) error { return d.EventDestroy(event) },
		name: "cuEventDestroy_v2",
		args: []int64{int64(event)},
	},
	"launching a graph": {
		call: func(d *Driver) error { return d.GraphLaunch(GraphExec(address), stream) },
		name: "cuGraphLaunch",
		args: []int64{int64(address), int64(stream)},
	},
	"destroying an instantiated graph": {
		call: func(d *Driver) error { return d.GraphExecDestroy(GraphExec(address)) },
		name: "cuGraphExecDestroy",
		args: []int64{int64(address)},
	},
	"adding dependencies to a capture": {
		call: func(d *Driver) error { return d.AddCaptureDependencies(stream, nodes) },
		name: "cuStreamUpdateCaptureDependencies",
		args: []int64{int64(stream), anyAddress, int64(len(nodes)), 0}, // flag: add
	},
	"adding dependencies to a graph": {
		call: func(d *Driver) error { return d.GraphAddDependencies(Graph(address), nodes, nodes) },
		name: "cuGraphAddDependencies",
		args: []int64{int64(address), anyAddress, anyAddress, int64(len(nodes))},
	},
	"removing dependencies from a graph": {
		call: func(d *Driver) error { return d.GraphRemoveDependencies(Graph(address), nodes, nodes) },
		name: "cuGraphRemoveDependencies",
		args: []int64{int64(address), anyAddress, anyAddress, int64(len(nodes))},
	},
	"destroying a graph": {
		call: func(d *Driver) error { return d.GraphDestroy(Graph(address)) },
		name: "cuGraphDestroy",
		args: []int64{int64(address)},
	},
	"unloading a module": {
		call: func(d *Driver) error { return d.ModuleUnload(Module(address)) },
		name: "cuModuleUnload",
		args: []int64{int64(address)},
	},
	"launching an overlapping kernel": {
		call: func(d *Driver) error {
			const blocks, threads = 7, 512 // arbitrary
			return d.LaunchOverlapping(Function(address), blocks, threads, stream, &Params{})
		},
		name: "cuLaunchKernelEx",
		// The arguments are the configuration, the kernel, 0, and the arguments of the kernel.
		args: []int64{anyAddress, int64(address), 0, anyAddress},
	},
	"launching a kernel": {
		call: func(d *Driver) error {
			return d.LaunchKernel(Function(address), 1<<20, 512, stream, &Params{})
		},
		name: "cuLaunchKernel",
		// The grid is 1<<20 x 1 x 1 blocks with 512 x 1 x 1 threads each, and 0 shared memory.
		args: []int64{int64(address), 1 << 20, 1, 1, 512, 1, 1, 0, int64(stream), 0, anyAddress},
	},
}

func device(d *Driver, handle int32) Device {
	return Device{driver: d, ordinal: handle, handle: handle}
}

// errIfFalse turns the result false into an error.
func errIfFalse(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("the method returned false")
	}

	return err
}

func TestMethodsPassAllArguments(t *testing.T) {
	driver, recorder := load(t, declarations)
	const outOfMemory = 2 // an arbitrary error code
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			recorder.Reset()
			if err := c.call(driver); err != nil {
				t.Fatal(err)
			}

			recorded := recorder.LastCall()
			hasSameArgs := slices.EqualFunc(recorded.Args, c.args, matches)
			if recorded.Name != c.name || !hasSameArgs {
				t.Errorf("called %s%#x, want %s%#x", recorded.Name, recorded.Args, c.name, c.args)
			}

			recorder.SetResult(outOfMemory)
			var callErr *Error
			if err := c.call(driver); !errors.As(err, &callErr) || callErr.Call != c.name {
				t.Errorf("got error %v, want one from %s", err, c.name)
			}
		})
	}
}

func matches(got, want int64) bool {
	if want == anyAddress {
		return got != 0
	}

	return got == want
}
