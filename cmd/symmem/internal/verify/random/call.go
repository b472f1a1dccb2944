package random

import (
	"context"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// testCall is a call with its streams and its expected result.
type testCall struct {
	workload.Transfer
	inputStream *symmem.Stream // on which the input is written
	stream      *symmem.Stream // on which the call is made
	input       symmem.Buffer
	want        []byte // nil if this rank receives no output
}

// launch does nothing if this rank is not a member of the group.
func (call *testCall) launch(ctx context.Context) error {
	if call.Group == nil || call.Operation == symmem.OpSend && call.Ranks == 1 {
		return nil
	}

	call.want = call.Output(call.Group.Rank())
	return call.Launch(ctx, call.stream, call.stream)
}

func (call *testCall) describe() string {
	name := call.Operation.String()
	if call.Operation == symmem.OpSend {
		name = "Send and Recv"
	}

	text := fmt.Sprintf("%s of %d %v", name, call.Count, call.DataType)
	if call.Operation.Reduces() {
		text += " " + call.ReduceOp.String()
	}

	if call.Group != nil {
		text += " in group " + call.Group.ID()
	}

	if call.Send == call.Recv {
		text += " in place"
	}

	return text
}
