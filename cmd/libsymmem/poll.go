package main

// #include "shim.h"
import "C"

//export goSetPoll
func goSetPoll(enable C.int) C.int {
	return guard(func() error {
		if enable == 0 {
			library.SetPoll(nil, nil)
			return nil
		}
		library.SetPoll(
			func() bool { return C.symmem_poll() != 0 },
			func() bool { return C.symmem_poll_in_collective() != 0 })
		return nil
	})
}
