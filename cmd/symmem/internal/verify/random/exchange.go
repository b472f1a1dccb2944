package random

import (
	"context"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// exchange is a call with its streams and its expected result.
type exchange struct {
	workload.Transfer
	inputStream *symmem.Stream // on which the input is written
	stream      *symmem.Stream // on which the call is made
	input       symmem.Buffer
	// want is the expected output, or nil if this rank receives none.
	want []byte
}

// launch makes the call if this rank is a member of the group.
func (e *exchange) launch(ctx context.Context) error {
	if e.Group == nil || e.Operation == symmem.OpSend && e.Ranks == 1 {
		return nil
	}
	e.want = e.Output(e.Group.Rank())
	return e.Launch(ctx, e.stream, e.stream)
}

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
