package dl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Setenv sets a variable in Go's environment and in that of libc, which C libraries read.
//
// Libraries such as NCCL cache variables, so Setenv must be called before they read them. During
// the call, no other thread may read the environment in C, because libc has no lock for it.
func Setenv(name, value string) error {
	if err := os.Setenv(name, value); err != nil {
		return err
	}
	setenv, ok := FindDefault("setenv")
	if !ok {
		return errors.New("setting an environment variable: libc has no setenv")
	}
	n, v := CString(name), CString(value)
	failed := int32(setenv.Call(AddressOf(n), AddressOf(v), 1)) != 0
	runtime.KeepAlive(n)
	runtime.KeepAlive(v)
	if failed {
		return fmt.Errorf("setting %s in libc's environment: invalid name or out of memory", name)
	}
	return nil
}
