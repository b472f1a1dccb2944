package symmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/ledger"
)

// locations holds the windows (memory that is registered on all ranks) of a call's buffers. where
// describes them, or explains why they are nil.
type locations struct {
	send, recv *windowEntry
	where      string
}

func (pl *planner) locations(call *driver.Call) locations {
	table := pl.windows.table.Load()
	sendBytes, recvBytes := call.Spans(len(pl.ranks), pl.rank)
	send, inSend := table.findWindow(call.Send, sendBytes)
	if call.Operation == driver.AllToAllV && inSend && sendBytes > 0 {
		call.SendWindow = send.window
	}

	if call.Operation.SplitsOneBuffer() {
		return locateUneven(table, call, sendBytes, recvBytes)
	}

	if call.Route != nil {
		return locateRoute(table, call, sendBytes, recvBytes)
	}

	if !call.Operation.UsesWindows() || call.Count == 0 {
		return locations{where: "the operation works without windows"}
	}

	if !inSend {
		return locations{where: "the send buffer is in no window of the group"}
	}

	if call.Operation == driver.ReduceScatterRMSNorm {
		call.SendWindow = send.window
		return locations{send: send, where: "the send buffer lies in a window of the group"}
	}

	recv, ok := table.findWindow(call.Recv, recvBytes)
	if !ok {
		return locations{where: "the receive buffer is in no window of the group"}
	}

	call.SendWindow, call.RecvWindow = send.window, recv.window
	return locations{send, recv, "both buffers lie in windows of the group"}
}

// describe returns the properties of a call that must be the same on all ranks. The Send and Recv
// of a message have different operations, peers and places, so it omits these.
func (pl *planner) describe(call *driver.Call, found *locations, ticket uint64) *event.Call {
	c := call.Describe()
	c.Ticket = ticket
	switch {
	case call.Operation.PointToPoint():
		c.Operation, c.Root = "SendRecv", -1
	case call.Norm != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp += ", " + call.Norm.Describe()
	case call.Route != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Route.Hidden)
		c.ReduceOp = call.Route.Describe()
	}

	if call.Path != driver.PathPlain && (found.send != nil || found.recv != nil) {
		pl.addPositions(&c, call, found)
	}

	return &c
}

func (pl *planner) addPositions(c *event.Call, call *driver.Call, found *locations) {
	send, recv, sendAt, recvAt := found.send, found.recv, call.Send, call.Recv
	// In an in-place call, the smaller buffer is this rank's part of the larger one, so use the
	// place of the larger buffer for both.
	switch {
	case !call.InPlace(pl.rank) || send == nil || recv == nil:
	case call.Operation == driver.AllGather:
		send, sendAt = recv, recvAt
	default:
		recv, recvAt = send, sendAt
	}

	if send != nil {
		c.SendPool, c.SendSegment, c.SendOffset = send.locate(sendAt)
	}

	if recv != nil {
		c.RecvPool, c.RecvSegment, c.RecvOffset = recv.locate(recvAt)
	}
}

func describeSubmitted(
	call *driver.Call, d *event.Call, ranks, rank int, digest uint64,
) *event.Call {
	if call.Operation.PointToPoint() {
		*d = call.Describe()
	}

	send, recv := call.Spans(ranks, rank)
	d.Bytes, d.Digest = max(send, recv), digest
	return d
}

func digestCall(c *event.Call) uint64 {
	d := ledger.Empty
	for words := range slices.Chunk(event.AppendCall(nil, c), 16) {
		var two [16]byte
		copy(two[:], words)
		d = ledger.Mix(d, binary.LittleEndian.Uint64(two[:]), binary.LittleEndian.Uint64(two[8:]))
	}

	return d
}

// mismatchedCall describes the call of a mismatch.
func (pl *planner) mismatchedCall(cause error) *event.Call {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) {
		return nil
	}

	call, ticket := *mismatch.Call, mismatch.Number
	if mismatch.Launch {
		ticket = 0 // the ranks do not agree on the number of the call
	}

	found := pl.locations(&call)
	return pl.describe(&call, &found, ticket)
}
