package symmem

import "symmem/driver"

// windowBuffers returns the send and the receive buffer. A buffer that other ranks do not access is
// zero.
func (c *collective) windowBuffers() [2]Memory {
	switch c.operation {
	case driver.Dispatch:
		return [2]Memory{{}, c.recv}
	case driver.Combine, driver.ReduceScatterRMSNorm:
		return [2]Memory{c.send, {}}
	default:
		return [2]Memory{c.send, c.recv}
	}
}

// locations contains the windows of those buffers whose segments and offsets must be the same on
// all ranks. A window is memory that the ranks of a group have registered together.
type locations struct {
	send, recv *windowEntry // may be nil
	reason     string       // why the call can or cannot use windows
}

const (
	worksWithoutWindows = "the operation works without windows"
	sendInNoWindow      = "the send buffer is in no window of the group"
	recvInNoWindow      = "the receive buffer is in no window of the group"
)

// setWindows sets the windows of a call, and returns those to compare.
func (pl *planner) setWindows(call *driver.Call) locations {
	table := pl.windows.table.Load()
	sendBytes, recvBytes := call.Spans(len(pl.ranks), pl.rank)
	switch {
	case call.Operation == driver.AllToAllV:
		if sendBytes > 0 {
			locateSend(table, call, sendBytes)
		}

		return locations{reason: worksWithoutWindows}
	case call.Operation.SplitsOneBuffer():
		return locateUneven(table, call, sendBytes, recvBytes)
	case call.Operation == driver.Combine:
		return locateSend(table, call, sendBytes)
	case call.Operation == driver.Dispatch:
		return locateRecv(table, call, recvBytes)
	case !call.Operation.UsesWindows() || call.Count == 0:
		return locations{reason: worksWithoutWindows}
	case call.Operation == driver.ReduceScatterRMSNorm:
		return locateSend(table, call, sendBytes)
	}

	send, isSendInWindow := table.findWindow(call.Send, sendBytes)
	if !isSendInWindow {
		return locations{reason: sendInNoWindow}
	}

	recv, isRecvInWindow := table.findWindow(call.Recv, recvBytes)
	if !isRecvInWindow {
		return locations{reason: recvInNoWindow}
	}

	call.SendWindow, call.RecvWindow = send.window, recv.window
	return locations{send, recv, "both buffers lie in windows of the group"}
}

// locateUneven finds the window of the divided buffer of an AllGatherV or a ReduceScatterV, and
// stores it in call. The parts must be contiguous, because peers compute their addresses from the
// counts.
func locateUneven(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) locations {
	withoutWindow := locations{reason: worksWithoutWindows}
	if !call.Splits.Contiguous(call.Operation) {
		return withoutWindow
	}

	found := withoutWindow
	switch {
	case call.Operation == driver.AllGatherV && recvBytes > 0:
		found = locateRecv(table, call, recvBytes)
	case call.Operation == driver.ReduceScatterV && sendBytes > 0:
		found = locateSend(table, call, sendBytes)
	}

	hasWindow := found.send != nil || found.recv != nil
	if !hasWindow {
		return withoutWindow
	}

	return found
}

// locateSend sets call.SendWindow if a window contains the send buffer.
func locateSend(table *windowTable, call *driver.Call, sendBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Send, sendBytes)
	if !isInWindow {
		return locations{reason: sendInNoWindow}
	}

	call.SendWindow = entry.window
	return locations{send: entry, reason: "the send buffer lies in a window of the group"}
}

// locateRecv sets call.RecvWindow if a window contains the receive buffer.
func locateRecv(table *windowTable, call *driver.Call, recvBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Recv, recvBytes)
	if !isInWindow {
		return locations{reason: recvInNoWindow}
	}

	call.RecvWindow = entry.window
	return locations{recv: entry, reason: "the receive buffer lies in a window of the group"}
}
