package host

import "symmem/driver"

type work interface {
	run() error
	// skip is called instead of run after the stream has failed. It may wait for earlier
	// collectives.
	skip(cause error)
}

// failure makes the stream fail with an error that a call has already returned.
type failure struct{ cause error }

func (f failure) run() error { return f.cause }

func (f failure) skip(error) {}

type memoryWork func()

func (f memoryWork) run() error {
	f()
	return nil
}

func (f memoryWork) skip(error) {}

// If the function panics or calls Goexit, the stream fails.
type hostWork func()

func (f hostWork) run() error { return driver.Guard("work on a stream", f) }

func (f hostWork) skip(error) {}

func alwaysReady() bool { return true }

func neverReady() bool { return false }
