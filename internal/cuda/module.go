package cuda

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"symmem/internal/dl"
)

// Module is loaded code: CUmodule.
type Module uintptr

// Function is a kernel of a module: CUfunction. It is valid as long as the module is.
type Function uintptr

// modules has the functions of the driver for modules and their kernels.
type modules struct{ table }

// ModuleLoadData loads code into the current context: the text of PTX, which the driver compiles,
// or a binary for the device. A zero ends either: PTX would go on without it, a binary knows its
// size.
func (m *modules) ModuleLoadData(image []byte) (Module, error) {
	if len(image) == 0 || image[len(image)-1] != 0 {
		return 0, errors.New("loading a module: no zero ends the code")
	}
	module, err := made[Module](&m.table, moduleLoadData, dl.AddressOf(&image[0]))
	runtime.KeepAlive(image)
	return module, err
}

// ModuleGetFunction finds a kernel by the name that the code gives it.
func (m *modules) ModuleGetFunction(module Module, name string) (Function, error) {
	text := dl.CString(name)
	function, err := made[Function](&m.table, moduleGetFunction, uintptr(module), dl.AddressOf(text))
	runtime.KeepAlive(text)
	return function, err
}

// ModuleLoadFunctions brings all kernels of a module to the device. Else each comes at its first
// launch (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2), and may wait there for all that
// runs in the context: forever, if a kernel does not end (CUDA C++ Programming Guide,
// "Lazy Loading"). So may this call. With a driver before CUDA 12.4, which cannot, it does nothing.
func (m *modules) ModuleLoadFunctions(module Module) error {
	for _, f := range []function{moduleGetFunctionCount, moduleEnumerateFunctions, funcLoad} {
		if m.symbols[f] == 0 {
			return nil
		}
	}
	n, err := made[uint32](&m.table, moduleGetFunctionCount, uintptr(module))
	if err != nil || n == 0 {
		return err
	}
	kernels := make([]Function, n)
	err = m.call(moduleEnumerateFunctions, dl.AddressOf(&kernels[0]), uintptr(n), uintptr(module))
	for i := 0; i < len(kernels) && err == nil; i++ {
		err = m.call(funcLoad, uintptr(kernels[i]))
	}
	return err
}

// ModuleUnload gives code back.
//
// Preconditions: no queued work and no graph uses it.
func (m *modules) ModuleUnload(module Module) error { return m.call(moduleUnload, uintptr(module)) }

// Params are the arguments of a kernel: the bytes of a structure. The zero value is a kernel
// without arguments.
type Params struct{ packed []byte }

// ParamsOf copies a structure, of numbers alone, whose members C lays out as Go does. It holds no
// pointers of Go's, which would keep nothing reachable.
func ParamsOf[T any](structure *T) Params {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(structure)), unsafe.Sizeof(*structure))
	return Params{slices.Clone(bytes)}
}

// With returns a copy that has another 64-bit integer at an offset.
func (p *Params) With(at int, v uint64) Params {
	packed := slices.Clone(p.packed)
	binary.NativeEndian.PutUint64(packed[at:], v)
	return Params{packed}
}

// MaxParams is the largest number of bytes of a kernel's arguments: what every device takes.
const MaxParams = 4096

// launch holds the arguments of cuLaunchKernel: a list of options with their values.
type launch struct {
	options [5]uintptr
	size    uint64
	params  [MaxParams]byte

	config    launchConfig
	attribute launchAttribute
}

func (l *launch) pack(params *Params) {
	if len(params.packed) > MaxParams {
		panic("cuda: too many arguments for a kernel")
	}
	l.size = uint64(copy(l.params[:], params.packed))
	l.options = [5]uintptr{
		launchParamPointer, dl.AddressOf(&l.params),
		launchParamSize, dl.AddressOf(&l.size), launchParamEnd,
	}
}

var launches = sync.Pool{New: func() any { return new(launch) }}

// The options of a launch: CU_LAUNCH_PARAM_... of cuda.h.
const (
	launchParamEnd     = 0
	launchParamPointer = 1
	launchParamSize    = 2
)

// launchConfig is CUlaunchConfig of cuda.h, and attribute CUlaunchAttribute.
type launchConfig struct {
	grid, block [3]uint32
	_, _        uint32 // shared memory, and what aligns the next
	stream      Stream
	attributes  uintptr
	count, _    uint32
}

type launchAttribute struct {
	id, _ uint32
	value [64]byte
}

// attributeProgrammatic lets a kernel begin while the one before it in the stream still runs:
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
const attributeProgrammatic = 6

// The layouts are those of cuda.h, or this does not compile.
var (
	_ [56]byte = [unsafe.Sizeof(launchConfig{})]byte{}
	_ [72]byte = [unsafe.Sizeof(launchAttribute{})]byte{}
)

// overlapping is the first CUDA that captures launches which overlap.
const overlapping = 12030

// LaunchesOverlap reports whether LaunchOverlapping can be used on a device.
func (v Device) LaunchesOverlap() (bool, error) {
	major, err := v.Attribute(AttributeComputeCapabilityMajor)
	if err != nil {
		return false, err
	}
	version, err := v.driver.Version()
	return major >= 9 && version >= overlapping, err
}

// LaunchOverlapping is LaunchKernel for a kernel that may be started before the kernels ahead of it
// in the stream have ended, and waits for their end itself (griddepcontrol.wait of PTX). It needs
// a device for which LaunchesOverlap returns true.
func (m *modules) LaunchOverlapping(
	f Function, blocks, threads int, stream Stream, params *Params,
) error {
	l := launches.Get().(*launch)
	defer launches.Put(l)
	l.pack(params)
	l.attribute = launchAttribute{id: attributeProgrammatic, value: [64]byte{1}}
	l.config = launchConfig{
		grid: [3]uint32{uint32(blocks), 1, 1}, block: [3]uint32{uint32(threads), 1, 1},
		stream: stream, attributes: dl.AddressOf(&l.attribute), count: 1,
	}
	return m.call(launchKernelEx, dl.AddressOf(&l.config), uintptr(f), 0, dl.AddressOf(&l.options))
}

// LaunchKernel queues a kernel: a row of blocks, each a row of threads, without dynamic shared
// memory. The arguments are copied before it returns. It panics if they have more than MaxParams
// bytes.
func (m *modules) LaunchKernel(
	f Function, blocks, threads int, stream Stream, params *Params,
) error {
	l := launches.Get().(*launch)
	defer launches.Put(l)
	l.pack(params)
	return m.call(launchKernel, uintptr(f), uintptr(blocks), 1, 1, uintptr(threads), 1, 1, 0,
		uintptr(stream), 0, dl.AddressOf(&l.options))
}
