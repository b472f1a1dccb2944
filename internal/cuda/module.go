package cuda

import (
	"runtime"
	"sync"
	"unsafe"

	"symmem/internal/dl"
)

// Module is loaded code: CUmodule.
type Module uintptr

// Function is a kernel of a module: CUfunction. It is valid as long as the module is.
type Function uintptr

// ModuleLoadData loads code into the current context: the text of PTX, which the driver compiles,
// or a binary for the device.
func (d *Driver) ModuleLoadData(image []byte) (Module, error) {
	text := dl.CString(string(image)) // PTX has to end with a zero; a binary knows its size
	module := dl.NewCell(Module(0))
	err := d.call(moduleLoadData, module.Address(), dl.AddressOf(text))
	runtime.KeepAlive(text)
	return module.Take(), err
}

// ModuleGetFunction finds a kernel by the name that the code gives it.
func (d *Driver) ModuleGetFunction(module Module, name string) (Function, error) {
	text := dl.CString(name)
	function := dl.NewCell(Function(0))
	err := d.call(moduleGetFunction, function.Address(), uintptr(module), dl.AddressOf(text))
	runtime.KeepAlive(text)
	return function.Take(), err
}

// ModuleUnload gives code back.
//
// Preconditions: no queued work and no graph uses it.
func (d *Driver) ModuleUnload(module Module) error { return d.call(moduleUnload, uintptr(module)) }

// Dim is a size of a grid or block of threads; a 0 counts as 1.
type Dim struct{ X, Y, Z uint32 }

func (m Dim) words() (x, y, z uintptr) {
	return uintptr(max(m.X, 1)), uintptr(max(m.Y, 1)), uintptr(max(m.Z, 1))
}

// Params are the arguments of a kernel, packed as C packs a structure. The zero value is a kernel
// without arguments; Reset makes one usable again without an allocation.
type Params struct{ packed []byte }

// Reset removes all arguments.
func (p *Params) Reset() { p.packed = p.packed[:0] }

// Uint64 adds a 64-bit integer.
func (p *Params) Uint64(v uint64) { pack(p, v) }

// Address adds a pointer.
func (p *Params) Address(v uintptr) { pack(p, v) }

// Uint32 adds a 32-bit integer.
func (p *Params) Uint32(v uint32) { pack(p, v) }

// Float32 adds a float.
func (p *Params) Float32(v float32) { pack(p, v) }

func pack[T uint32 | uint64 | uintptr | float32](p *Params, v T) {
	size := int(unsafe.Sizeof(v))
	for len(p.packed)%size != 0 {
		p.packed = append(p.packed, 0)
	}
	p.packed = append(p.packed, unsafe.Slice((*byte)(unsafe.Pointer(&v)), size)...)
}

// MaxParams is the largest number of bytes of a kernel's arguments: what every device takes.
const MaxParams = 4096

func (p *Params) copyTo(to *[MaxParams]byte) (size int) {
	if p == nil {
		return 0
	}
	if len(p.packed) > MaxParams {
		panic("cuda: too many arguments for a kernel")
	}
	return copy(to[:], p.packed)
}

// launch is what cuLaunchKernel reads: a list of options with their values.
type launch struct {
	options [5]uintptr
	size    uint64
	params  [MaxParams]byte
}

var launches = sync.Pool{New: func() any { return new(launch) }}

// The options of a launch: CU_LAUNCH_PARAM_... of cuda.h.
const (
	launchParamEnd     = 0
	launchParamPointer = 1
	launchParamSize    = 2
)

// LaunchKernel queues a kernel with shared bytes of dynamic shared memory. The arguments are
// copied before it returns; nil is none. It panics if they have more than MaxParams bytes.
func (d *Driver) LaunchKernel(
	f Function, grid, block Dim, shared uint32, stream Stream, params *Params,
) error {
	l := launches.Get().(*launch)
	defer launches.Put(l)
	l.size = uint64(params.copyTo(&l.params))
	l.options = [5]uintptr{
		launchParamPointer, dl.AddressOf(&l.params),
		launchParamSize, dl.AddressOf(&l.size), launchParamEnd,
	}
	gx, gy, gz := grid.words()
	bx, by, bz := block.words()
	return d.call(launchKernel, uintptr(f), gx, gy, gz, bx, by, bz, uintptr(shared),
		uintptr(stream), 0, dl.AddressOf(&l.options))
}
