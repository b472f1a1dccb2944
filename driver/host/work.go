package host

import "symmem/driver"

// work is something that a stream does.
type work interface {
	// run does the work and waits for whatever it needs.
	run() error
	// skip is called instead of run on a stream that has failed. It may wait for a turn.
	skip(cause error)
}

// failure is work that fails, of which the caller knows.
type failure struct{ cause error }

func (f failure) run() error { return f.cause }

func (f failure) skip(error) {}

// memoryWork copies or fills memory.
type memoryWork func()

func (f memoryWork) run() error {
	f()
	return nil
}

func (f memoryWork) skip(error) {}

// hostWork is a function of the user's. If it does not return, that is the stream's error.
type hostWork func()

func (f hostWork) run() error { return driver.Guard("work on a stream", f) }

func (f hostWork) skip(error) {}

// always and never say whether work is quick: memory waits for nothing, and what a function of the
// host does is not known.
func always() bool { return true }

func never() bool { return false }
