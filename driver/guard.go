package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a user's function on another goroutine and waits for it. If the function panics or
// calls runtime.Goexit, Guard returns an error. The caller may hold locks.
func Guard(name string, f func()) error {
	result := make(chan error)
	go GuardHere(name, f, func(err error) { result <- err })
	return <-result
}

// PanicError returns an error with the value and stack of a panic. It must be called in the
// deferred function that recovers the value.
func PanicError(name string, value any) error {
	return fmt.Errorf("%s panicked: %v\n\n%s", name, value, debug.Stack())
}

// GuardHere is like Guard, but calls the function on the current goroutine and passes the result to
// done. After a runtime.Goexit, the goroutine exits when done returns.
func GuardHere(name string, f func(), done func(error)) {
	err := fmt.Errorf("%s called runtime.Goexit", name)
	defer func() {
		if r := recover(); r != nil {
			err = PanicError(name, r)
		}

		done(err)
	}()
	f()
	err = nil
}
