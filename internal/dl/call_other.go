//go:build !(linux && amd64)

package dl

// directArguments is -1, so that all calls use general.
const directArguments = -1

func direct(Symbol, []uintptr) uintptr { panic("dl: no direct calls on this platform") }

func directStatus(*frame) (int32, bool) { panic("dl: no direct calls on this platform") }
