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

// To detect calls that differ between ranks, each rank describes its call, such as "AllReduce sum
// of 8 float32", and the ranks compare a digest of the description. A window is memory that the
// ranks have registered together. If they access each other's buffers through a window, the
// description includes the buffers' positions: pool, segment and offset. Addresses may differ.

// locations describes where the buffers of a call lie.
type locations struct {
	send, recv *windowEntry // nil if the buffer's position may differ between ranks
	where      string       // why the call can or cannot use windows
}

// locations finds the windows of a call's buffers, and also stores them in the call.
func (pl *planner) locations(call *driver.Call) locations {
	table := pl.windows.table.Load()
	sendBytes, recvBytes := call.Spans(len(pl.ranks), pl.rank)
	send, isSendInWindow := table.findWindow(call.Send, sendBytes)
	switch {
	case call.Operation == driver.AllToAllV:
		// The send window is optional, and positions in it may differ between ranks.
		if isSendInWindow && sendBytes > 0 {
			call.SendWindow = send.window
		}

		return locations{where: "the operation works without windows"}
	case call.Operation.SplitsOneBuffer():
		return locateUneven(table, call, sendBytes, recvBytes)
	case call.Route != nil:
		return locateRoute(table, call, sendBytes, recvBytes)
	case !call.Operation.UsesWindows() || call.Count == 0:
		return locations{where: "the operation works without windows"}
	case !isSendInWindow:
		return locations{where: "the send buffer is in no window of the group"}
	case call.Operation == driver.ReduceScatterRMSNorm: // other ranks access only the send buffer
		call.SendWindow = send.window
		return locations{send: send, where: "the send buffer lies in a window of the group"}
	}

	recv, isRecvInWindow := table.findWindow(call.Recv, recvBytes)
	if !isRecvInWindow {
		return locations{where: "the receive buffer is in no window of the group"}
	}

	call.SendWindow, call.RecvWindow = send.window, recv.window
	return locations{send, recv, "both buffers lie in windows of the group"}
}

// describe returns the properties of a call that must be equal on all ranks. ticket is the call's
// sequence number, or 0 if unknown.
func (pl *planner) describe(call *driver.Call, found *locations, ticket uint64) *event.Call {
	c := call.Describe()
	c.Ticket = ticket
	switch {
	case call.Operation.PointToPoint():
		const noPeer = -1
		c.Operation, c.Root = "SendRecv", noPeer // a Send matches a Recv
	case call.Norm != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp += ", " + call.Norm.Describe()
	case call.Route != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Route.Hidden)
		c.ReduceOp = call.Route.Describe()
	}

	// On the plain path, positions may differ between ranks.
	hasWindow := found.send != nil || found.recv != nil
	if hasWindow && call.Path != driver.PathPlain {
		pl.addPositions(&c, call, found)
	}

	return &c
}

func (pl *planner) addPositions(c *event.Call, call *driver.Call, found *locations) {
	send, sendAddress := found.send, call.Send
	recv, recvAddress := found.recv, call.Recv
	isInPlace := send != nil && recv != nil && call.InPlace(pl.rank)
	if isInPlace {
		// If one buffer is a part of the other, its position depends on the rank. Therefore, the larger
		// buffer's position describes both.
		isRecvLarger := call.Operation == driver.AllGather
		if isRecvLarger {
			send, sendAddress = recv, recvAddress
		} else {
			recv, recvAddress = send, sendAddress
		}
	}

	if send != nil {
		c.SendPool, c.SendSegment, c.SendOffset = send.locate(sendAddress)
	}

	if recv != nil {
		c.RecvPool, c.RecvSegment, c.RecvOffset = recv.locate(recvAddress)
	}
}

// describeSubmitted completes a description for this rank's events. It adds the size and the digest
// to the result d of describe. A message becomes a Send or a Recv again.
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
	const wordBytes = 8
	const chunkBytes = 2 * wordBytes // Mix takes two words
	digest := ledger.Empty
	encoded := event.AppendCall(nil, c)
	for chunk := range slices.Chunk(encoded, chunkBytes) {
		var padded [chunkBytes]byte
		copy(padded[:], chunk)
		first := binary.LittleEndian.Uint64(padded[:wordBytes])
		second := binary.LittleEndian.Uint64(padded[wordBytes:])
		digest = ledger.Mix(digest, first, second)
	}

	return digest
}

// mismatchedCall describes this rank's call in a MismatchError. For other causes, it returns nil.
func (pl *planner) mismatchedCall(cause error) *event.Call {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) || mismatch.Call == nil {
		return nil
	}

	ticket := mismatch.Number
	if mismatch.Launch {
		ticket = 0 // unknown, because Number counts launches of GPU kernels
	}

	call := *mismatch.Call
	found := pl.locations(&call)
	return pl.describe(&call, &found, ticket)
}
