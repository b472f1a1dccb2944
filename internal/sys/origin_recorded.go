//go:build invariants

package sys

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// origin is the stack that created a mapping: the addresses of the callers, with zeros at the end.
type origin [24]uintptr

// openMappings holds all mappings that are not closed.
var openMappings struct {
	sync.Mutex
	all map[*Mapping]bool // nil before the first mapping
}

// record records that m has been opened. newMapping must call it.
func (o *origin) record(m *Mapping) {
	runtime.Callers(4, o[:]) // skips Callers, record, newMapping and its caller
	openMappings.Lock()
	defer openMappings.Unlock()
	if openMappings.all == nil {
		openMappings.all = map[*Mapping]bool{}
	}

	openMappings.all[m] = true
}

// forget records that m is not open any more.
func (*origin) forget(m *Mapping) {
	openMappings.Lock()
	defer openMappings.Unlock()
	delete(openMappings.all, m)
}

// reportSecondClose panics, because a mapping is closed that is not open.
func (o *origin) reportSecondClose() {
	panic("sys: a mapping is closed twice; it was created at\n" + o.String())
}

func (o *origin) String() string {
	var text strings.Builder
	frames := runtime.CallersFrames(o[:])
	for {
		frame, hasMore := frames.Next()
		if frame.Function != "" {
			fmt.Fprintf(&text, "\t%s %s:%d\n", frame.Function, frame.File, frame.Line)
		}

		if !hasMore {
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
		description := fmt.Sprintf("%d bytes at %#x, mapped at\n%s", m.bytes, m.Address(), &m.origin)
		list = append(list, description)
	}

	slices.Sort(list)
	return list
}
