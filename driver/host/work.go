package host

import "symmem/driver"

// work is queued on a stream.
type work interface {
	// run does the work, including all waits.
	run() error
	// skip is called instead of run after the stream has failed. It may wait for a ticket's turn.
	skip(cause error)
}

// failure implements work that fails the stream with an error that a call has already returned.
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

// hostWork calls a function of the program. A panic or Goexit in it fails the stream.
type hostWork func()

func (f hostWork) run() error { return driver.Guard("work on a stream", f) }

func (f hostWork) skip(error) {}

// always marks work that never waits, such as a copy, and may run on the caller's thread.
func always() bool { return true }

// never marks work that may wait, such as a function of the program.
func never() bool { return false }
