package dl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Setenv sets a variable in the environments of Go and of libc. It must be called before libraries
// such as NCCL read and cache the variable, and while no thread reads the environment in C.
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
