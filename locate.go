package symmem

import "symmem/driver"

// windowBuffers returns the send and the receive buffer, or zero for a buffer that needs no window,
// because other ranks do not access it.
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

// locateUneven is for AllGatherV and ReduceScatterV. Only the divided buffer must lie in a window,
// and its parts must be contiguous, because peers compute their beginnings from the counts.
func locateUneven(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) (found locations) {
	found.reason = "the operation works without windows"
	if !call.Splits.Contiguous(call.Operation) {
		return found
	}

	if call.Operation == driver.AllGatherV {
		if entry, ok := table.findWindow(call.Recv, recvBytes); ok && recvBytes > 0 {
			call.RecvWindow = entry.window
			return locations{recv: entry, reason: "the receive buffer lies in a window of the group"}
		}
	} else if entry, ok := table.findWindow(call.Send, sendBytes); ok && sendBytes > 0 {
		call.SendWindow = entry.window
		return locations{send: entry, reason: "the send buffer lies in a window of the group"}
	}

	return found
}

// locateRoute finds the window, the memory registered with the group, of the only buffer that other
// ranks access, and stores it in the call.
func locateRoute(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) locations {
	if call.Operation == driver.Combine {
		return locateCombineSend(table, call, sendBytes)
	}

	return locateDispatchRecv(table, call, recvBytes)
}

func locateCombineSend(table *windowTable, call *driver.Call, sendBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Send, sendBytes)
	if !isInWindow {
		return locations{reason: "the send buffer is in no window of the group"}
	}

	call.SendWindow = entry.window
	return locations{send: entry, reason: "the send buffer lies in a window of the group"}
}

func locateDispatchRecv(table *windowTable, call *driver.Call, recvBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Recv, recvBytes)
	if !isInWindow {
		return locations{reason: "the receive buffer is in no window of the group"}
	}

	call.RecvWindow = entry.window
	return locations{recv: entry, reason: "the receive buffer lies in a window of the group"}
}
