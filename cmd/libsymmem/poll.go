package main

// #include "shim.h"
import "C"

// goSetPoll lets the caller interrupt waits, or disables this.
//
//export goSetPoll
func goSetPoll(enable C.int) C.int {
	return guard(func() error {
		if enable == 0 {
			library.SetPoll(nil, nil)
			return nil
		}
		pollOnThread := func() bool { return C.symmem_poll() != 0 }
		pollInCollective := func() bool { return C.symmem_poll_in_collective() != 0 }
		library.SetPoll(pollOnThread, pollInCollective)
		return nil
	})
}
