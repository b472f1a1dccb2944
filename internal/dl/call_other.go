//go:build !(linux && amd64)

package dl

// callDirectly is never used.
const directArguments = -1

func callDirectly(Symbol, []uintptr) uintptr { panic("dl: no direct calls on this platform") }

func callForStatus(*frame) (int32, bool) { panic("dl: no direct calls on this platform") }
