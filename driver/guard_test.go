package driver_test

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"symmem/driver"
)

func TestGuardReturnsStackOfPanic(t *testing.T) {
	err := driver.Guard("work", panics)
	if err == nil || !strings.HasPrefix(err.Error(), "work panicked: on purpose\n") ||
		!strings.Contains(err.Error(), "driver_test.panics(") {
		t.Errorf("got %v, want the panic's value and stack", err)
	}
}

func panics() { panic("on purpose") }

func TestGuardHereRunsOnCallersGoroutine(t *testing.T) {
	for want, f := range map[string]func(){
		"": func() {}, "called runtime.Goexit": runtime.Goexit, "panicked": panics,
	} {
		done := make(chan error)
		var stack []byte
		go callGuardHere(func() {
			stack = debug.Stack()
			f()
		}, func(err error) { done <- err })
		err := <-done
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), "work "+want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}

		if !strings.Contains(string(stack), "driver_test.callGuardHere(") {
			t.Errorf("%q: the function ran on another goroutine:\n%s", want, stack)
		}
	}
}

func callGuardHere(f func(), done func(error)) { driver.GuardHere("work", f, done) }
