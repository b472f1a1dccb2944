package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a user's function on another goroutine and waits until it ends. It returns an error
// if the function panics or calls runtime.Goexit, as testing.T.FailNow does, so that neither
// unwinds a caller that holds locks. The error for a panic contains the stack. what names the
// function in the error.
func Guard(what string, f func()) error {
	ended := make(chan error)
	go GuardHere(what, f, func(err error) { ended <- err })
	return <-ended
}

// PanicError returns the error for a panic in a user's function, with the panic's value and stack.
// The deferred function that recovers the value must call it. what names the function.
func PanicError(what string, value any) error {
	return fmt.Errorf("%s panicked: %v\n\n%s", what, value, debug.Stack())
}

// GuardHere calls a user's function on the caller's goroutine, then calls ended with the result
// that Guard would return. It is for callers that have started a goroutine for the function. If the
// function calls runtime.Goexit, the goroutine exits after ended.
func GuardHere(what string, f func(), ended func(error)) {
	err := fmt.Errorf("%s called runtime.Goexit", what)
	defer func() {
		if r := recover(); r != nil {
			err = PanicError(what, r)
		}
		ended(err)
	}()
	f()
	err = nil
}
