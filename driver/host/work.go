package host

import "fmt"

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

// hostWork is a function of the host; a panic in it becomes the stream's error.
type hostWork func()

func (f hostWork) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("work on a stream panicked: %v", r)
		}
	}()
	f()
	return nil
}

func (f hostWork) skip(error) {}

// always and never say whether work is quick: memory waits for nothing, and what a function of the
// host does is not known.
func always() bool { return true }

func never() bool { return false }
