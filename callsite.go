package symmem

import (
	"fmt"
	"runtime"
	"strings"

	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// callSites are the texts of call sites that are not in Go code.
type callSites struct {
	mu    ranked.Mutex[sitesMu]
	names *ledger.Sites // made at the first use; guarded by mu
}

func (all *callSites) number(text string) uint32 {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.names == nil {
		all.names = ledger.NewSites()
	}
	return all.names.Intern(0, text)
}

// named returns the text of a number.
func (all *callSites) named(site uint32) string {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.names.At(site)
}

// text writes a call site: a program counter, or a number that callSites has given.
func (all *callSites) text(site uintptr) string {
	if site < ledger.MaxSites {
		return all.named(uint32(site))
	}
	frame, _ := runtime.CallersFrames([]uintptr{site}).Next()
	return fmt.Sprintf("%s:%d", frame.File, frame.Line)
}

// callerDepth is how many calls inside this package there are at most between two of others.
const callerDepth = 16

// caller finds the first frame outside this package.
func caller() uintptr {
	var pcs [callerDepth]uintptr
	n := runtime.Callers(3, pcs[:])
	for _, pc := range pcs[:n] {
		if f := runtime.FuncForPC(pc - 1); f != nil && !ours(f.Name()) {
			return pc
		}
	}
	return 0
}

// ours reports whether a function belongs to this package, and not to its tests or examples.
func ours(function string) bool {
	rest, ok := strings.CutPrefix(function, "symmem.")
	return ok && !strings.HasPrefix(rest, "Test") && !strings.HasPrefix(rest, "Example")
}
