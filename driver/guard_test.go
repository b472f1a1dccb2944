package driver_test

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"symmem/driver"
)

func TestAPanicIsReportedWithItsStack(t *testing.T) {
	err := driver.Guard("work", panics)
	if err == nil || !strings.HasPrefix(err.Error(), "work panicked: on purpose\n") ||
		!strings.Contains(err.Error(), "driver_test.panics(") {
		t.Errorf("got %v", err)
	}
}

func panics() { panic("on purpose") }

// TestAGuardedFunctionRunsOnItsCallersGoroutine ends that in each way.
func TestAGuardedFunctionRunsOnItsCallersGoroutine(t *testing.T) {
	for what, f := range map[string]func(){
		"": func() {}, "called runtime.Goexit": runtime.Goexit, "panicked": panics,
	} {
		ended := make(chan error)
		var stack []byte
		go startsGuarded(func() {
			stack = debug.Stack()
			f()
		}, func(err error) { ended <- err })
		err := <-ended
		if (err == nil) != (what == "") || err != nil && !strings.HasPrefix(err.Error(), "work "+what) {
			t.Errorf("%q: got %v", what, err)
		}
		if !strings.Contains(string(stack), "driver_test.startsGuarded(") {
			t.Errorf("%q: it runs on another goroutine:\n%s", what, stack)
		}
	}
}

func startsGuarded(f func(), ended func(error)) { driver.GuardHere("work", f, ended) }
