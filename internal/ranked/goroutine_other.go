//go:build invariants && !amd64

package ranked

import (
	"bytes"
	"runtime"
	"strconv"
)

// current returns the number in the heading of the goroutine's stack, "goroutine 7 [running]".
func current() uintptr {
	var buffer [64]byte
	heading := buffer[len("goroutine "):runtime.Stack(buffer[:], false)]
	digits, _, _ := bytes.Cut(heading, []byte(" "))
	number, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("ranked: cannot parse the number of the goroutine: " + err.Error())
	}
	return uintptr(number)
}
