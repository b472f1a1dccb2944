package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a user's function on another goroutine and waits until it ends. It returns an error
// if the function panics or calls runtime.Goexit, as testing.T.FailNow does. The caller may hold
// locks, because its own stack is not unwound. The error for a panic contains the stack. name
// identifies the function in the error.
func Guard(name string, f func()) error {
	result := make(chan error)
	go GuardHere(name, f, func(err error) { result <- err })
	return <-result
}

// PanicError returns the error for a panic in a user's function, with the panic's value and stack.
// It must be called in the deferred function that recovers the value. name identifies the function.
func PanicError(name string, value any) error {
	return fmt.Errorf("%s panicked: %v\n\n%s", name, value, debug.Stack())
}

// GuardHere calls a user's function on the caller's goroutine, and then done with the result that
// Guard would return. It is for callers that have started a goroutine for the function. If the
// function calls runtime.Goexit, the goroutine exits after done.
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
