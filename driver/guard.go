package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a user's function on another goroutine and waits for it. If the function panics or
// calls runtime.Goexit, as testing.T.FailNow does, Guard returns an error that contains name, which
// identifies the function, and the stack of a panic. The caller may hold locks, because its stack
// is not unwound.
func Guard(name string, f func()) error {
	result := make(chan error)
	go GuardHere(name, f, func(err error) { result <- err })
	return <-result
}

// PanicError returns an error with the value and the stack of a panic in the user's function that
// is called name. It must be called in the deferred function that recovers the value.
func PanicError(name string, value any) error {
	return fmt.Errorf("%s panicked: %v\n\n%s", name, value, debug.Stack())
}

// GuardHere is like Guard, but calls the user's function on the caller's goroutine and passes
// the result to done. It is for callers that have started a goroutine for the function. If the
// function calls runtime.Goexit, the goroutine exits after done returns.
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
