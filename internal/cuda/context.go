package cuda

import "symmem/internal/dl"

// Context is CUDA's state of one device in this process; 0 is none.
type Context uintptr

// RetainPrimary returns the device's primary context, the one that the CUDA runtime, PyTorch and
// NCCL use, and makes it if there is none yet, which takes a good part of a second. It does not
// make it current. Each RetainPrimary is paired with one ReleasePrimary.
func (v Device) RetainPrimary() (Context, error) {
	context := dl.NewCell(Context(0))
	err := v.driver.call(devicePrimaryCtxRetain, context.Address(), uintptr(v.handle))
	return context.Take(), err
}

// ReleasePrimary takes one RetainPrimary back. The last one destroys the context and all that is
// in it, unless others in the process hold it.
func (v Device) ReleasePrimary() error {
	return v.driver.call(devicePrimaryCtxRelease, uintptr(v.handle))
}

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
	context := dl.NewCell(Context(0))
	err := d.call(ctxGetCurrent, context.Address())
	return context.Take(), err
}

// MemGetInfo returns how many bytes of the current device's memory are free, and how many it has.
// Other processes' memory counts as used.
func (d *Driver) MemGetInfo() (free, total int64, err error) {
	f, t := dl.NewCell(int64(0)), dl.NewCell(int64(0))
	err = d.call(memGetInfo, f.Address(), t.Address())
	return f.Take(), t.Take(), err
}
