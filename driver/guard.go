package driver

import (
	"fmt"
	"runtime/debug"
)

// Guard calls a function of the user's on another goroutine and waits for it. A panic in the
// function, or the end of its goroutine by runtime.Goexit, as testing.T.FailNow has it, is an error
// and does not reach the caller, who may hold locks. what names the function. The error of a panic
// has its stack.
func Guard(what string, f func()) error {
	ended := make(chan error)
	go func() {
		err := fmt.Errorf("%s called runtime.Goexit", what)
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("%s panicked: %v\n\n%s", what, r, debug.Stack())
			}
			ended <- err
		}()
		f()
		err = nil
	}()
	return <-ended
}
