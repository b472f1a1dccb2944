package random

import (
	"context"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// exchange is one checked call.
type exchange struct {
	workload.Call
	// The input is written on stream from, the call is on stream on.
	from, on *symmem.Stream
	// sender is the buffer that the input is a part of.
	sender symmem.Buffer
	// want is what must be received, or nil if the call leaves the memory of this rank alone.
	want []byte
}

// launch makes the call, where this rank is a member.
func (e *exchange) launch(ctx context.Context) error {
	if e.Group == nil || e.Operation == symmem.OpSend && e.Ranks == 1 {
		return nil
	}
	e.want = e.Output(e.Group.Rank())
	return e.Launch(ctx, e.on, e.on)
}

// describe names the call for people.
func (e *exchange) describe() string {
	name := e.Operation.String()
	if e.Operation == symmem.OpSend {
		name = "Send and Recv"
	}
	text := fmt.Sprintf("%s of %d %v", name, e.Count, e.DataType)
	if e.Operation.Reduces() {
		text += " " + e.ReduceOp.String()
	}
	if e.Group != nil {
		text += " in group " + e.Group.ID()
	}
	if e.Send == e.Recv {
		text += " in place"
	}
	return text
}
