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

// Suppose that two ranks call AllReduce on a buffer at offset 4096 of segment 2 of pool 1. The
// group has registered the segment: the memory is in a window, through which the ranks access each
// other's buffers. This works only if both ranks make the same call on the same offset. Therefore,
// each rank describes its call: "AllReduce sum of 8 float32", with the pool, the segment and the
// offset. It leaves out the address, which may differ. The ranks compare a digest (a hash) of the
// description.

// locations holds the windows of a call's buffers, if the buffers must be at the same position in
// them on all ranks. Otherwise, the windows are nil.
type locations struct {
	send, recv *windowEntry
	where      string // why the call can or cannot use windows, for the explanation of its path
}

// locations finds the windows of a call's buffers. It also stores them in the call.
func (pl *planner) locations(call *driver.Call) locations {
	table := pl.windows.table.Load()
	sendBytes, recvBytes := call.Spans(len(pl.ranks), pl.rank)
	send, isSendInWindow := table.findWindow(call.Send, sendBytes)
	switch {
	case call.Operation == driver.AllToAllV:
		if isSendInWindow && sendBytes > 0 {
			call.SendWindow = send.window // optional in an AllToAllV
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
	case call.Operation == driver.ReduceScatterRMSNorm: // peers access only the send buffer
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

// describe returns the properties of a call that must be the same on all ranks. ticket is the
// number of the call, or 0 if it is unknown.
func (pl *planner) describe(call *driver.Call, found *locations, ticket uint64) *event.Call {
	c := call.Describe()
	c.Ticket = ticket
	switch {
	case call.Operation.PointToPoint():
		// A Send and its Recv have different operations and peers.
		c.Operation, c.Root = "SendRecv", -1
	case call.Norm != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp += ", " + call.Norm.Describe()
	case call.Route != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Route.Hidden)
		c.ReduceOp = call.Route.Describe()
	}

	// On the plain path, the positions may differ between ranks.
	hasWindow := found.send != nil || found.recv != nil
	if hasWindow && call.Path != driver.PathPlain {
		pl.addPositions(&c, call, found)
	}

	return &c
}

// addPositions adds the pool, segment and offset of each buffer in a window.
func (pl *planner) addPositions(c *event.Call, call *driver.Call, found *locations) {
	send, sendAddress := found.send, call.Send
	recv, recvAddress := found.recv, call.Recv
	isInPlace := send != nil && recv != nil && call.InPlace(pl.rank)
	if isInPlace {
		// If the buffers differ, the smaller one is this rank's part of the larger one. Its offset
		// depends on the rank, so use the position of the larger one for both.
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

// describeSubmitted completes d, the description from describe, with the size and the digest. For a
// message, it also replaces "SendRecv" by this rank's operation and peer.
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

// digestCall returns the digest of a description.
func digestCall(c *event.Call) uint64 {
	const wordBytes = 8
	digest := ledger.Empty
	encoded := event.AppendCall(nil, c)
	for piece := range slices.Chunk(encoded, 2*wordBytes) { // Mix adds two words
		var padded [2 * wordBytes]byte
		copy(padded[:], piece)
		first := binary.LittleEndian.Uint64(padded[:wordBytes])
		second := binary.LittleEndian.Uint64(padded[wordBytes:])
		digest = ledger.Mix(digest, first, second)
	}

	return digest
}

// mismatchedCall describes this rank's call in a MismatchError. If cause contains no call, it
// returns nil.
func (pl *planner) mismatchedCall(cause error) *event.Call {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) || mismatch.Call == nil {
		return nil
	}

	ticket := mismatch.Number
	if mismatch.Launch {
		ticket = 0 // Number counts launches of GPU kernels, not calls
	}

	call := *mismatch.Call
	found := pl.locations(&call)
	return pl.describe(&call, &found, ticket)
}
