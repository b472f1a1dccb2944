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

// A program loads code as a module, and gets its kernels by name. For example, the kernel
// add(float *a, float *b, int n) is launched as follows:
//
//   - ParamsOf packs the three arguments: two addresses of 8 bytes, and a number of 4 bytes.
//   - LaunchKernel queues the kernel on a stream. With 10 blocks of 512 threads, 5120 threads run
//     it.
//   - CUDA reads the arguments during the call. Later launches use their memory again.

// Module is loaded code (CUmodule).
type Module uintptr

// Function is a kernel of a module (CUfunction). It is valid until the module is unloaded.
type Function uintptr

// modules calls the functions for modules and kernels.
type modules struct{ table }

// ModuleLoadData loads code into the current context: PTX, which the driver compiles, or machine
// code (a cubin). image must end with a zero byte.
func (m *modules) ModuleLoadData(image []byte) (Module, error) {
	endsWithZero := len(image) > 0 && image[len(image)-1] == 0
	if !endsWithZero {
		return 0, errors.New("loading a module: the code does not end with a zero byte")
	}

	module, err := getValue[Module](&m.table, moduleLoadData, dl.AddressOf(&image[0]))
	runtime.KeepAlive(image)
	return module, err
}

// ModuleGetFunction returns the kernel with the given name.
func (m *modules) ModuleGetFunction(module Module, name string) (Function, error) {
	text := dl.CString(name)
	function, err := getValue[Function](&m.table, moduleGetFunction, uintptr(module),
		dl.AddressOf(text))
	runtime.KeepAlive(text)
	return function, err
}

// ModuleLoadFunctions loads all kernels of a module onto the device. Without it, CUDA loads each
// kernel at its first launch, and may then wait for all running kernels (CUDA C++ Programming
// Guide, "Lazy Loading"). With drivers older than CUDA 12.4, ModuleLoadFunctions does nothing.
func (m *modules) ModuleLoadFunctions(module Module) error {
	for _, f := range []function{moduleGetFunctionCount, moduleEnumerateFunctions, funcLoad} {
		isMissing := m.symbols[f] == 0
		if isMissing {
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

// Params holds the arguments of a kernel: the bytes of a structure with a field for each argument.
type Params struct{ packed []byte }

// ParamsOf copies the arguments in a structure. It must contain only numbers and have the same
// layout in C and Go.
func ParamsOf[T any](structure *T) Params {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(structure)), unsafe.Sizeof(*structure))
	return Params{slices.Clone(bytes)}
}

// WithUint64 returns a copy of p in which the argument at the given offset, in bytes, is v.
func (p *Params) WithUint64(offset int, v uint64) Params {
	packed := slices.Clone(p.packed)
	binary.NativeEndian.PutUint64(packed[offset:], v)
	return Params{packed}
}

// MaxParams is the maximum size of arguments in bytes. Every device supports it.
const MaxParams = 4096

// launchArguments is memory that CUDA reads during a launch.
type launchArguments struct {
	extra  [5]uintptr      // two options, each a name and a value, and a name that ends the list
	size   uint64          // number of bytes used in params
	params [MaxParams]byte // arguments of the kernel

	// config and attribute are used only by LaunchOverlapping.
	config    launchConfig
	attribute launchAttribute
}

// launchPool holds *launchArguments for later launches.
var launchPool = sync.Pool{New: func() any { return new(launchArguments) }}

// Names of options in launchArguments.extra (CU_LAUNCH_PARAM_... in cuda.h).
const (
	launchParamEnd     = 0
	launchParamPointer = 1 // the value is the address of the arguments
	launchParamSize    = 2 // the value is the address of their size
)

// setParams copies the arguments of a kernel to l. It panics if they are too large.
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

// LaunchKernel queues a kernel with a grid of blocks, each with the given number of threads. It
// copies the arguments. It panics if they have more than MaxParams bytes.
func (m *modules) LaunchKernel(
	f Function, blocks, threads int, stream Stream, params *Params,
) error {
	l := launchPool.Get().(*launchArguments)
	defer launchPool.Put(l)
	l.setParams(params)
	const (
		noSharedMemory = 0
		noArray        = 0 // the arguments are in extra, not in an array of pointers
	)
	// The grid and the blocks have one dimension, so their other sizes are 1.
	return m.call(launchKernel, uintptr(f), uintptr(blocks), 1, 1, uintptr(threads), 1, 1,
		noSharedMemory, uintptr(stream), noArray, dl.AddressOf(&l.extra))
}

// launchConfig is CUlaunchConfig of cuda.h.
type launchConfig struct {
	grid       [3]uint32 // number of blocks in each dimension
	block      [3]uint32 // number of threads of a block in each dimension
	_, _       uint32    // dynamic shared memory, which is not used, and padding
	stream     Stream
	attributes uintptr // address of an array of launchAttributes
	count, _   uint32  // number of attributes, and padding
}

// launchAttribute is CUlaunchAttribute of cuda.h.
type launchAttribute struct {
	id, _ uint32 // CUlaunchAttributeID, and padding
	value [64]byte
}

// attributeOverlap is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
const attributeOverlap = 6

// The sizes must match cuda.h. Otherwise, these declarations do not compile.
var (
	_ [56]byte = [unsafe.Sizeof(launchConfig{})]byte{}
	_ [72]byte = [unsafe.Sizeof(launchAttribute{})]byte{}
)

// LaunchOverlapping is like LaunchKernel, but the kernel may start before its predecessor in the
// stream has completed (programmatic dependent launch). The kernel must wait for its predecessor
// with griddepcontrol.wait of PTX. Call it only if CanOverlapLaunches returns true for the device.
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
		stream: stream, attributes: dl.AddressOf(&l.attribute), count: 1,
	}
	const noArray = 0 // the arguments are in extra, not in an array of pointers
	return m.call(launchKernelEx, dl.AddressOf(&l.config), uintptr(f), noArray,
		dl.AddressOf(&l.extra))
}

// CanOverlapLaunches reports whether the device supports LaunchOverlapping.
func (d Device) CanOverlapLaunches() (bool, error) {
	major, err := d.Attribute(AttributeComputeCapabilityMajor)
	if err != nil {
		return false, err
	}

	version, err := d.driver.Version()
	const (
		minMajor   = 9     // the first devices with programmatic dependent launches (Hopper)
		minVersion = 12030 // CUDA 12.3, the first version that can capture them
	)
	return major >= minMajor && version >= minVersion, err
}
