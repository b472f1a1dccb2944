package dl_test

import (
	"os"
	"runtime"
	"testing"

	"symmem/internal/dl"
)

func TestSetenvChangesGoAndLibc(t *testing.T) {
	const name = "SYMMEM_TEST_OF_SETENV"
	t.Setenv(name, "only in Go")
	for _, value := range []string{"in both", ""} {
		if err := dl.Setenv(name, value); err != nil {
			t.Fatal(err)
		}

		key := dl.CString(name)
		address := libcFunction(t, "getenv").Call(dl.AddressOf(key))
		runtime.KeepAlive(key)
		if address == 0 || dl.GoString(address) != value || os.Getenv(name) != value {
			t.Errorf("libc has %q and Go has %q, want %q", dl.GoString(address), os.Getenv(name), value)
		}
	}

	if err := dl.Setenv("", "nameless"); err == nil {
		t.Error("Setenv with an empty name succeeded")
	}
}
