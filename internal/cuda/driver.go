package cuda

import (
	"errors"
	"fmt"
	"os"

	"symmem/internal/dl"
)

// PathVariable names the variable of the environment that says which libcuda to open instead of
// the system's.
const PathVariable = "SYMMEM_CUDA"

// Driver is an initialised libcuda. It is immutable and safe for use by several goroutines.
type Driver struct {
	library *dl.Library
	symbols []dl.Symbol // of names
	// first is made right before each call; the zero value is none.
	first dl.Step
}

// Load opens libcuda and initialises it. Without paths it opens the file that SYMMEM_CUDA names,
// or else the system's libcuda.so.1; the copy that the process has loaded already goes first. It
// needs no context and makes none.
//
// Errors match ErrNoDriver when there is no library, or one that lacks a function, and are an
// *Error when cuInit refuses: ErrNoDevice where there is a driver and no GPU.
func Load(paths ...string) (*Driver, error) {
	if len(paths) == 0 {
		paths = []string{"libcuda.so.1"}
		if path := os.Getenv(PathVariable); path != "" {
			paths = []string{path}
		}
	}
	library, err := dl.Open(paths...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	d := &Driver{library: library}
	if err := d.find(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	if err := d.call(initialize, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// find fills the table of functions, and reports all that are missing.
func (d *Driver) find() error {
	var all []error
	for f, name := range names {
		symbol, ok := d.library.Find(name)
		if !ok && f < int(optional) {
			all = append(all, &MissingError{name, d.library.Path()})
		}
		d.symbols = append(d.symbols, symbol)
	}
	return errors.Join(all...)
}

// call calls a function and turns its result into an error. It does not allocate unless the
// function refuses.
func (d *Driver) call(f function, args ...uintptr) error {
	if status, ok := d.symbols[f].StatusAfter(&d.first, args...); !ok || Code(status) != Success {
		return d.failure(f, status, ok)
	}
	return nil
}

// made calls a function that leaves a value at the address that is its first argument.
func made[T any](d *Driver, f function, others ...uintptr) (T, error) {
	var none T
	cell := dl.NewCell(none)
	args := append(make([]uintptr, 0, 8), cell.Address())
	err := d.call(f, append(args, others...)...)
	return cell.Take(), err
}

// failure is the error of a call, or of the step before it if that is what did not go well.
func (d *Driver) failure(f function, status int32, ok bool) error {
	if !ok {
		return d.first.Refused(status)
	}
	return d.newError(f, Code(status))
}

// query calls a function whose answer "not ready" is no failure.
func (d *Driver) query(f function, handle uintptr) (done bool, err error) {
	status, ok := d.symbols[f].StatusAfter(&d.first, handle)
	switch {
	case ok && Code(status) == Success:
		return true, nil
	case ok && Code(status) == ErrNotReady:
		return false, nil
	default:
		return false, d.failure(f, status, ok)
	}
}

// Path is the file of the library.
func (d *Driver) Path() string { return d.library.Path() }

// Version is the newest version of CUDA that the driver supports, such as 12090 for 12.9.
func (d *Driver) Version() (int, error) {
	version, err := made[int32](d, driverGetVersion)
	return int(version), err
}

// newError asks the driver what it calls a result. Both functions work without a context.
func (d *Driver) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: d.describe(getErrorName, code), Text: d.describe(getErrorString, code),
	}
}

func (d *Driver) describe(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(d.symbols[f].Call(uintptr(code), text.Address()))
	at := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(at)
}

// DeviceCount is the number of GPUs that the process may see (CUDA_VISIBLE_DEVICES).
func (d *Driver) DeviceCount() (int, error) {
	count, err := made[int32](d, deviceGetCount)
	return int(count), err
}

// Device returns the GPU of the given number, counted among those that the process may see.
func (d *Driver) Device(ordinal int) (Device, error) {
	handle, err := made[int32](d, deviceGet, uintptr(ordinal))
	return Device{d, int32(ordinal), handle}, err
}

// Context is CUDA's state of one device in this process; 0 is none.
type Context uintptr

// SetCurrent makes a context that of the calling thread; 0 leaves it without one.
func (d *Driver) SetCurrent(context Context) error {
	return d.call(ctxSetCurrent, uintptr(context))
}

// In is the driver for use on any thread, which need not be locked for it: each call makes a
// context current on its thread first. C is entered once for both, so that costs much less than
// SetCurrent. Calls that rely on being on the thread of the one before do not go through it.
func (d *Driver) In(context Context) *Driver {
	in := *d
	in.first = d.Entry(context)
	return &in
}

// Entry is the step that makes a context current, for calls of libraries that work in one.
func (d *Driver) Entry(context Context) dl.Step {
	return dl.Step{
		Function: d.symbols[ctxSetCurrent], Argument: uintptr(context),
		Refused: func(status int32) error { return d.newError(ctxSetCurrent, Code(status)) },
	}
}

// Current returns the context of the calling thread, or 0.
func (d *Driver) Current() (Context, error) {
	return made[Context](d, ctxGetCurrent)
}

// MemGetInfo returns how many bytes of the current device's memory are free, and how many it has.
// Other processes' memory counts as used.
func (d *Driver) MemGetInfo() (free, total int64, err error) {
	f, t := dl.NewCell(int64(0)), dl.NewCell(int64(0))
	err = d.call(memGetInfo, f.Address(), t.Address())
	return f.Take(), t.Take(), err
}
