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
	symbols [functions]dl.Symbol
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
	for f := range functions {
		symbol, ok := d.library.Find(names[f])
		if !ok && f < optional {
			all = append(all, &MissingError{names[f], d.library.Path()})
		}
		d.symbols[f] = symbol
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
	version := dl.NewCell(int32(0))
	err := d.call(driverGetVersion, version.Address())
	return int(version.Take()), err
}
