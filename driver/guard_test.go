package driver_test

import (
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
