package dl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Setenv sets a variable in the environments of Go and of libc. Call it before libraries such as
// NCCL read and cache the variable, and while no thread reads the environment in C.
func Setenv(name, value string) error {
	if err := os.Setenv(name, value); err != nil {
		return err
	}

	setenv, exists := FindDefault("setenv")
	if !exists {
		return errors.New("setting an environment variable: libc has no setenv")
	}

	const overwrite = 1
	nameForC := CString(name)
	valueForC := CString(value)
	status := int32(setenv.Call(AddressOf(nameForC), AddressOf(valueForC), overwrite))
	runtime.KeepAlive(nameForC)
	runtime.KeepAlive(valueForC)
	if status != 0 {
		return fmt.Errorf("setting %s in libc's environment: invalid name or out of memory", name)
	}

	return nil
}
