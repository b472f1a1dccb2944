package random

import (
	"context"
	"fmt"

	"symmem"
	"symmem/internal/workload"
)

// exchange is one checked call: what this rank sends and receives, and where.
type exchange struct {
	workload.Pattern
	// group is nil on ranks that are no members: they fill and read the same memory, so that their
	// pools see the same uses.
	group *symmem.Group
	// The input is written on stream from, the call is on stream on.
	from, on   *symmem.Stream
	send, recv symmem.Memory
	// sender is the buffer that send is a part of.
	sender    symmem.Buffer
	got, want []byte
}

// junk is what memory is spoiled with before a call.
const junk = 0xa5

// me is this rank's number in the group, or 0 if it is no member.
func (e *exchange) me() int {
	if e.group == nil {
		return 0
	}
	return e.group.Rank()
}

// place cuts the memory of the call out of two buffers, or of one where it is in place.
func (e *exchange) place(send, recv symmem.Memory) (err error) {
	e.send, e.recv, err = e.Place(e.me(), send, recv)
	return err
}

// fill spoils the output and writes the input.
func (e *exchange) fill() error {
	if err := e.from.Fill(e.recv, junk); err != nil {
		return err
	}
	return e.from.Copy(e.send, symmem.Host(e.Input(e.me())))
}

// launch makes the call, where this rank is a member.
func (e *exchange) launch(ctx context.Context) error {
	if e.group == nil || e.Operation == symmem.OpSend && e.Ranks == 1 {
		return nil
	}
	e.want = e.Output(e.group.Rank())
	return e.Launch(ctx, e.group, e.send, e.recv, e.on, e.on)
}

// read queues the copy of the output.
func (e *exchange) read() error {
	e.got = make([]byte, e.recv.Bytes())
	return e.on.Copy(symmem.Host(e.got), e.recv)
}

// describe names the call for people.
func (e *exchange) describe() string {
	name := e.Operation.String()
	if e.Operation == symmem.OpSend {
		name = "Send and Recv"
	}
	text := fmt.Sprintf("%s of %d %v", name, e.Count, e.DataType)
	if e.Reduces() {
		text += " " + e.ReduceOp.String()
	}
	if e.group != nil {
		text += " in group " + e.group.ID()
	}
	if e.send == e.recv {
		text += " in place"
	}
	return text
}
