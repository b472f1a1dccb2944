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

// observe holds ws.mu while it calls functions of waits: once a wait is off the list, its goroutine
// may change what they read. Only that goroutine can call isReady, so all ranks awaited with
// isReady count as missing.
func (ws *waiter) observe() []observation {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := make([]observation, len(ws.waits))
	for i, w := range ws.waits {
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
