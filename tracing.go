package symmem

import (
	"fmt"

	"symmem/trace"
)

// envTrace is the variable that provides Options.Trace if the program does not set it.
const envTrace = "SYMMEM_TRACE"

// recording describes where the events of a Runtime are recorded.
type recording struct {
	trace   *trace.Writer // nil if there is no trace
	onEvent bool          // whether there is an OnEvent
}

// open creates the trace of a rank, if there is to be one.
func (r *recording) open(o *Options, rank, size int) (err error) {
	if o.Trace == "" {
		return nil
	}
	r.trace, err = trace.Create(o.Trace, trace.Options{Rank: rank, Size: size})
	if err != nil {
		return fmt.Errorf("Options.Trace: %w", err)
	}
	return nil
}

// active reports whether there is an OnEvent or a trace.
func (r *recording) active() bool { return r.onEvent || r.trace != nil }

// newSource returns what writes the events of a pool or a group, or nil if there is no trace.
func (r *recording) newSource() *trace.Source {
	if r.trace == nil {
		return nil
	}
	return r.trace.NewSource()
}
