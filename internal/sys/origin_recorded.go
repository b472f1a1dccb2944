//go:build invariants

package sys

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

type origin [24]uintptr

var openMappings struct {
	sync.Mutex
	all map[*Mapping]bool
}

func (o *origin) record(m *Mapping) {
	runtime.Callers(4, o[:]) // skips Callers, record, newMapping and its caller
	openMappings.Lock()
	defer openMappings.Unlock()
	if openMappings.all == nil {
		openMappings.all = map[*Mapping]bool{}
	}
	openMappings.all[m] = true
}

func (*origin) forget(m *Mapping) {
	openMappings.Lock()
	defer openMappings.Unlock()
	delete(openMappings.all, m)
}

func (o *origin) reportSecondClose() {
	panic("sys: a mapping is closed twice; it was created at\n" + o.String())
}

func (o *origin) String() string {
	var text strings.Builder
	frames := runtime.CallersFrames(o[:])
	for {
		f, more := frames.Next()
		if f.Function != "" {
			fmt.Fprintf(&text, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return text.String()
		}
	}
}

// OpenMappings describes the open mappings and the stacks that created them.
func OpenMappings() []string {
	openMappings.Lock()
	defer openMappings.Unlock()
	var list []string
	for m := range openMappings.all {
		list = append(list,
			fmt.Sprintf("%d bytes at %#x, mapped at\n%s", m.bytes, m.Address(), &m.origin))
	}
	slices.Sort(list)
	return list
}
