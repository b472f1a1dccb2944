package dl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Setenv sets a variable in both environments of the process: Go's and libc's, which C libraries
// read. In a program without cgo os.Setenv only changes the first.
//
// It must be called before the library reads the variable (NCCL caches values), and while no other
// thread is in a C library that reads its environment, since libc's environment is not protected by
// a lock.
func Setenv(name, value string) error {
	if err := os.Setenv(name, value); err != nil {
		return err
	}
	setenv, ok := Default("setenv")
	if !ok {
		return errors.New("setting a variable of the environment: libc has no setenv")
	}
	n, v := CString(name), CString(value)
	failed := int32(setenv.Call(AddressOf(n), AddressOf(v), 1)) != 0
	runtime.KeepAlive(n)
	runtime.KeepAlive(v)
	if failed {
		return fmt.Errorf("setting the variable %s of libc's environment: no memory", name)
	}
	return nil
}
