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

// locateUneven finds the window of the divided buffer of an AllGatherV or a ReduceScatterV, and
// stores it in call. The parts must be contiguous, because peers compute their addresses from the
// counts.
func locateUneven(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) locations {
	withoutWindow := locations{reason: "the operation works without windows"}
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

// locateRoute finds the window of the only buffer that other ranks access, and stores it in call.
func locateRoute(
	table *windowTable, call *driver.Call, sendBytes, recvBytes int64,
) locations {
	if call.Operation == driver.Combine {
		return locateSend(table, call, sendBytes)
	}

	return locateRecv(table, call, recvBytes)
}

func locateSend(table *windowTable, call *driver.Call, sendBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Send, sendBytes)
	if !isInWindow {
		return locations{reason: "the send buffer is in no window of the group"}
	}

	call.SendWindow = entry.window
	return locations{send: entry, reason: "the send buffer lies in a window of the group"}
}

func locateRecv(table *windowTable, call *driver.Call, recvBytes int64) locations {
	entry, isInWindow := table.findWindow(call.Recv, recvBytes)
	if !isInWindow {
		return locations{reason: "the receive buffer is in no window of the group"}
	}

	call.RecvWindow = entry.window
	return locations{recv: entry, reason: "the receive buffer lies in a window of the group"}
}
