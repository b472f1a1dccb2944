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

// Module is machine code on a device (CUmodule).
type Module uintptr

// Function is a kernel (CUfunction), valid until its module is unloaded.
type Function uintptr

// modules calls the functions for modules and kernels.
type modules struct{ table }

// ModuleLoadData loads a cubin (machine code), or compiles and loads PTX code, in the current
// context. code must end with a zero byte.
func (m *modules) ModuleLoadData(code []byte) (Module, error) {
	endsWithZero := len(code) > 0 && code[len(code)-1] == 0
	if !endsWithZero {
		return 0, errors.New("loading a module: the code does not end with a zero byte")
	}

	module, err := getValue[Module](&m.table, moduleLoadData, dl.AddressOf(&code[0]))
	runtime.KeepAlive(code)
	return module, err
}

// ModuleGetFunction returns a kernel by name.
func (m *modules) ModuleGetFunction(module Module, name string) (Function, error) {
	text := dl.CString(name)
	function, err := getValue[Function](&m.table, moduleGetFunction, uintptr(module),
		dl.AddressOf(text))
	runtime.KeepAlive(text)
	return function, err
}

// ModuleLoadFunctions loads all kernels of a module onto the device. Otherwise, the first launch of
// a kernel loads it, and may wait for running kernels (CUDA C++ Programming Guide, "Lazy Loading").
// Before CUDA 12.4, ModuleLoadFunctions has no effect.
func (m *modules) ModuleLoadFunctions(module Module) error {
	for _, f := range []function{moduleGetFunctionCount, moduleEnumerateFunctions, funcLoad} {
		if !m.has(f) {
			return nil
		}
	}

	count, err := getValue[uint32](&m.table, moduleGetFunctionCount, uintptr(module))
	if err != nil || count == 0 {
		return err
	}

	kernels := make([]Function, count)
	err = m.call(moduleEnumerateFunctions, dl.AddressOf(&kernels[0]), uintptr(count), uintptr(module))
	if err != nil {
		return err
	}

	for _, kernel := range kernels {
		if err := m.call(funcLoad, uintptr(kernel)); err != nil {
			return err
		}
	}

	return nil
}

// ModuleUnload unloads a module. Queued work and graphs must not use its kernels.
func (m *modules) ModuleUnload(module Module) error { return m.call(moduleUnload, uintptr(module)) }

// Params holds the arguments of a kernel as the bytes of a C structure.
type Params struct{ packed []byte }

// ParamsOf copies a structure with one field for each argument. The fields must be numbers, with
// the same layout in C and Go.
func ParamsOf[T any](structure *T) Params {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(structure)), unsafe.Sizeof(*structure))
	return Params{slices.Clone(bytes)}
}

// WithUint64 returns a copy of p in which argument replaces the 8 bytes at offset.
func (p *Params) WithUint64(offset int, argument uint64) Params {
	packed := slices.Clone(p.packed)
	binary.NativeEndian.PutUint64(packed[offset:], argument)
	return Params{packed}
}

// MaxParams is the number of bytes of kernel arguments that every device accepts.
const MaxParams = 4096

// The options in launchArguments.extra (CU_LAUNCH_PARAM_... in cuda.h).
const (
	launchParamEnd     = 0
	launchParamPointer = 1 // the value is the address of launchArguments.params
	launchParamSize    = 2 // the value is the address of launchArguments.size
)

// launchArguments is memory that CUDA reads during a launch.
type launchArguments struct {
	extra  [5]uintptr      // pairs of an option and a value, then launchParamEnd
	size   uint64          // number of bytes used in params
	params [MaxParams]byte // arguments of the kernel

	config    launchConfig    // only for LaunchOverlapping
	attribute launchAttribute // only for LaunchOverlapping
}

// launchPool reuses *launchArguments, so that launches do not allocate.
var launchPool = sync.Pool{New: func() any { return new(launchArguments) }}

const noKernelParams = 0 // extra has the arguments

// setParams panics if params has more than MaxParams bytes.
func (l *launchArguments) setParams(params *Params) {
	if len(params.packed) > MaxParams {
		panic("cuda: too many arguments for a kernel")
	}

	l.size = uint64(copy(l.params[:], params.packed))
	l.extra = [5]uintptr{
		launchParamPointer, dl.AddressOf(&l.params),
		launchParamSize, dl.AddressOf(&l.size),
		launchParamEnd,
	}
}

// LaunchKernel queues a kernel with a one-dimensional grid of blocks, each with the given number of
// threads. CUDA copies params. LaunchKernel panics if params has more than MaxParams bytes.
func (m *modules) LaunchKernel(
	f Function, blocks, threads int, stream Stream, params *Params,
) error {
	l := launchPool.Get().(*launchArguments)
	defer launchPool.Put(l)
	l.setParams(params)
	const noSharedMemory = 0
	return m.call(launchKernel, uintptr(f), uintptr(blocks), 1, 1, uintptr(threads), 1, 1,
		noSharedMemory, uintptr(stream), noKernelParams, dl.AddressOf(&l.extra))
}

// launchConfig is CUlaunchConfig of cuda.h.
type launchConfig struct {
	grid           [3]uint32 // number of blocks in each dimension
	block          [3]uint32 // number of threads in each dimension
	_              uint32    // bytes of dynamic shared memory
	_              uint32    // padding
	stream         Stream
	attributes     uintptr // address of an array of launchAttributes
	attributeCount uint32
	_              uint32 // padding
}

// launchAttribute is CUlaunchAttribute of cuda.h.
type launchAttribute struct {
	id    uint32 // CUlaunchAttributeID
	_     uint32 // padding
	value [64]byte
}

// attributeOverlap is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
const attributeOverlap = 6

// These declarations compile only if the sizes match cuda.h.
var (
	_ [56]byte = [unsafe.Sizeof(launchConfig{})]byte{}
	_ [72]byte = [unsafe.Sizeof(launchAttribute{})]byte{}
)

// LaunchOverlapping is LaunchKernel with programmatic dependent launch: the kernel may start before
// the previous kernel of the stream has completed, and must wait for that kernel with the PTX
// instruction griddepcontrol.wait. CanOverlapLaunches must be true for the device.
func (m *modules) LaunchOverlapping(
	f Function, blocks, threads int, stream Stream, params *Params,
) error {
	l := launchPool.Get().(*launchArguments)
	defer launchPool.Put(l)
	l.setParams(params)
	const allowed = 1
	l.attribute = launchAttribute{id: attributeOverlap, value: [64]byte{allowed}}
	l.config = launchConfig{
		grid: [3]uint32{uint32(blocks), 1, 1}, block: [3]uint32{uint32(threads), 1, 1},
		stream: stream, attributes: dl.AddressOf(&l.attribute), attributeCount: 1,
	}
	return m.call(launchKernelEx, dl.AddressOf(&l.config), uintptr(f), noKernelParams,
		dl.AddressOf(&l.extra))
}

// CanOverlapLaunches reports whether the device supports LaunchOverlapping.
func (d Device) CanOverlapLaunches() (bool, error) {
	const (
		minMajor   = 9     // Hopper, the first devices with programmatic dependent launch
		minVersion = 12030 // CUDA 12.3, the first version that can capture such launches
	)
	major, err := d.Attribute(AttributeComputeCapabilityMajor)
	if err != nil {
		return false, err
	}

	version, err := d.driver.Version()
	return major >= minMajor && version >= minVersion, err
}
