package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a function of the user on another goroutine and waits for it. It turns a panic in the
// function, or runtime.Goexit as called by testing.T.FailNow, into an error, so that it does not
// reach a caller that holds locks. what names the function. The error of a panic contains its
// stack.
func Guard(what string, f func()) error {
	ended := make(chan error)
	go GuardHere(what, f, func(err error) { ended <- err })
	return <-ended
}

// PanicError returns the error for a panic with a value in a function of the user, with the stack.
// It is called by the deferred function that recovers the value. what names the function.
func PanicError(what string, value any) error {
	return fmt.Errorf("%s panicked: %v\n\n%s", what, value, debug.Stack())
}

// GuardHere calls a function of the user's on the caller's goroutine, for callers that have started
// one for it, and then ended with the error that Guard returns, or nil. runtime.Goexit in the
// function ends the goroutine after that.
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
