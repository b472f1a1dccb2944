package shm

import (
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/sys"
)

type observation struct {
	callText string
	begin    uint64
	missing  []int // group ranks
}

// observe describes all slow waits. It holds ws.mu while it calls their functions. The waiting
// goroutine may change what they read as soon as it has removed the wait from the list. Only that
// goroutine can call isReady, so observe counts all ranks awaited by such a wait as missing.
func (ws *waiter) observe() []observation {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := make([]observation, len(ws.list))
	for i, w := range ws.list {
		all[i] = observation{callText: w.callText(), begin: w.begin, missing: w.awaited}
		if w.isReady == nil {
			all[i].missing = ws.appendLate(nil, w)
		}
	}
	return all
}

func (ws *waiter) inspect() driver.Inspection {
	all := driver.Inspection{
		Activity: control.Activity(*ws.ranks.cfg, ws.rankStates(&slowWait{})),
	}
	for _, w := range ws.observe() {
		status := control.WaitStatus{
			Group: *ws.ranks.cfg, CallText: func() string { return w.callText },
			Waited: time.Duration(sys.Monotonic() - w.begin),
		}
		wait := slowWait{isReady: func() bool { return false }, awaited: w.missing}
		states := ws.rankStates(&wait)
		if late := status.Warning(states); late != nil {
			all.Waits = append(all.Waits, *late)
		}
	}
	return all
}
