//go:build !(linux && amd64)

package dl

// directArguments is 0: all calls take the general way.
const directArguments = 0

func direct(Symbol, []uintptr) uintptr { panic("dl: no direct calls on this platform") }
