package symmem

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// callSites numbers call sites: lines of Go code or locations in another language.
type callSites struct {
	mu    ranked.Mutex[sitesMu]
	names *ledger.Sites // guarded by mu
}

func (all *callSites) number(text string) uint32 {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.names.Intern(0, text)
}

func (all *callSites) callerSite() uint32 {
	pc := callerPC()
	all.mu.Lock()
	defer all.mu.Unlock()
	if number, known := all.names.Index(pc); known || pc == 0 {
		return number
	}

	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return all.names.Intern(pc, fmt.Sprintf("%s:%d", frame.File, frame.Line))
}

func (all *callSites) text(site uint32) string {
	if site == 0 {
		return ""
	}

	all.mu.Lock()
	defer all.mu.Unlock()
	return all.names.At(site)
}

const callerDepth = 16

// callerPC returns the innermost frame outside this package, or 0.
func callerPC() uintptr {
	var pcs [callerDepth]uintptr
	n := runtime.Callers(3, pcs[:])
	for _, pc := range pcs[:n] {
		if f := runtime.FuncForPC(pc - 1); f != nil && !isInternal(f.Name()) {
			return pc
		}
	}

	return 0
}

// packagePrefix ends with a dot.
var packagePrefix = strings.TrimSuffix(
	runtime.FuncForPC(reflect.ValueOf((*callSites).text).Pointer()).Name(), "(*callSites).text")

// isInternal is false for tests and examples.
func isInternal(function string) bool {
	rest, ok := strings.CutPrefix(function, packagePrefix)
	return ok && !strings.HasPrefix(rest, "Test") && !strings.HasPrefix(rest, "Example")
}
