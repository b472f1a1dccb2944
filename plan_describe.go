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

// describe returns the properties of a call that must be equal on all ranks, such as "AllReduce
// sum of 8 float32". The ranks compare digests of the result. ticket is the call's sequence number,
// or 0 if unknown.
func (pl *planner) describe(call *driver.Call, found *locations, ticket uint64) *event.Call {
	c := call.Describe()
	c.Ticket = ticket
	switch {
	case call.Operation.PointToPoint():
		const noPeer = -1
		c.Operation, c.Root = "SendRecv", noPeer // equal for the Send and the Recv of a message
	case call.Norm != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp += ", " + call.Norm.Describe()
	case call.Route != nil:
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Route.Hidden)
		c.ReduceOp = call.Route.Describe()
	}

	mustPositionsMatch := call.Path != driver.PathPlain
	if mustPositionsMatch {
		pl.addPositions(&c, call, found)
	}

	return &c
}

// addPositions adds the segments and offsets of the buffers that lie in windows.
func (pl *planner) addPositions(c *event.Call, call *driver.Call, found *locations) {
	send, sendAddress := found.send, call.Send
	recv, recvAddress := found.recv, call.Recv
	isInPlace := send != nil && recv != nil && call.InPlace(pl.rank)
	if isInPlace {
		// Compare the larger buffer: the smaller one is this rank's part of it.
		isRecvLarger := call.Operation == driver.AllGather
		if isRecvLarger {
			send, sendAddress = recv, recvAddress
		} else {
			recv, recvAddress = send, sendAddress
		}
	}

	if send != nil {
		c.SendPool, c.SendSegment, c.SendOffset = send.positionOf(sendAddress)
	}

	if recv != nil {
		c.RecvPool, c.RecvSegment, c.RecvOffset = recv.positionOf(recvAddress)
	}
}

// describeSubmitted changes the result of describe for use in this rank's events.
func describeSubmitted(
	call *driver.Call, described *event.Call, ranks, rank int, digest uint64,
) *event.Call {
	if call.Operation.PointToPoint() {
		*described = call.Describe() // Send or Recv instead of SendRecv
	}

	sendBytes, recvBytes := call.Spans(ranks, rank)
	described.Bytes, described.Digest = max(sendBytes, recvBytes), digest
	return described
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

// mismatchedCall describes the Call of a MismatchError. For other causes, it returns nil.
func (pl *planner) mismatchedCall(cause error) *event.Call {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) || mismatch.Call == nil {
		return nil
	}

	ticket := mismatch.Number
	if mismatch.Launch { // Number counts kernel launches, not calls
		ticket = 0
	}

	call := *mismatch.Call
	found := pl.setWindows(&call)
	return pl.describe(&call, &found, ticket)
}

// Explanation says how a collective would run. Its String is, for example, "AllReduce: plain path:
// the send buffer is in no window of the group".
type Explanation struct {
	Operation string `json:"operation"`
	// Path is "plain", "window", "direct" or "two-level".
	Path string `json:"path"`
	// Why gives the reason for Path. If the direct path was requested or is possible, but is not
	// taken, Why also says why not.
	Why string `json:"why"`
	// Registers reports whether the call would register memory first.
	Registers bool `json:"registers"`
}

// String formats the explanation as one line.
func (e Explanation) String() string {
	if e.Registers {
		return fmt.Sprintf("%s: %s path, after registering: %s", e.Operation, e.Path, e.Why)
	}

	return fmt.Sprintf("%s: %s path: %s", e.Operation, e.Path, e.Why)
}

// explain implements Group.Explain. It registers nothing, but chooses the path as if the collective
// had registered its buffers.
func (pl *planner) explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	c := pl.exampleCall(op, send, recv, count, t)
	call := c.call()
	if err := pl.life.err(); err != nil {
		return Explanation{}, err
	}

	if err := pl.validate(c, &call); err != nil {
		return Explanation{}, err
	}

	windowsReason := pl.setWindows(&call).reason
	e := Explanation{Operation: op.String()}
	mayRegister := op.UsesWindows() && !pl.rt.captures.isAnyCapturing()
	if mayRegister {
		e.Registers = send.needsRegistration(pl.group) || recv.needsRegistration(pl.group)
		if pl.setFutureWindows(&call, send, recv) {
			windowsReason = "both buffers belong to pools that the group can register"
		}
	}

	offer, why, err := pl.router.route(c.choice, &call, windowsReason) // sets call.Path
	if err != nil {
		return Explanation{}, err
	}

	e.Path, e.Why = call.Path.String(), why.String()
	if remarker, canRemark := offer.(driver.Remarker); canRemark {
		if remark := remarker.Remark(call.Path); remark != "" {
			e.Why += "; " + remark
		}
	}

	return e, nil
}

// setFutureWindows sets windows that the collective would create, and reports whether it would.
func (pl *planner) setFutureWindows(call *driver.Call, send, recv Memory) bool {
	needsWindows := call.SendWindow == nil && call.Count > 0
	canCreateWindows := pl.canRegister(send.pool) && pl.canRegister(recv.pool)
	if !needsWindows || !canCreateWindows {
		return false
	}

	call.SendWindow, call.RecvWindow = futureWindow{}, futureWindow{}
	return true
}

// exampleCall returns a call whose splits are even and whose peer is the next rank.
func (pl *planner) exampleCall(
	op Operation, send, recv Memory, count int64, t DataType,
) *collective {
	c := &collective{operation: op, send: send, recv: recv, count: count, dataType: t}
	switch {
	case op.HasSplits():
		c.splits = evenSplits(op, count, len(pl.ranks))
		c.count = c.splits.CountOf(op, pl.rank)
	case op.PointToPoint():
		nextRank := (pl.rank + 1) % len(pl.ranks)
		c.root = nextRank // for messages, root is the peer
	}

	return c
}

// futureWindow stands for a window that does not exist yet.
type futureWindow struct{}

func (futureWindow) Deregister() error { return nil }

// canRegister reports whether all ranks of the group share the pool.
func (pl *planner) canRegister(p *Pool) bool {
	return p != nil && p.domain != nil && p.domain.contains(&pl.roster)
}
