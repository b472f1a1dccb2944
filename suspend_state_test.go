package symmem

import "context"

// EnterPool begins a call that uses memory of a pool. The result ends the call.
func EnterPool(p *Pool) (leave func()) {
	pass, _ := p.calls.Enter()
	return func() { p.calls.Leave(pass) }
}

// ChangesSuspension reports whether Suspend or Resume of a pool is in progress on this rank.
func ChangesSuspension(p *Pool) bool {
	state := p.suspender.state.Load()
	return state == poolSuspending || state == poolResuming
}

// CloseAfter closes a pool with a function that waits for the work of this rank.
func CloseAfter(p *Pool, wait func(context.Context) error) error { return p.closeAfter(wait) }

// WorkLimit is the limit of each wait of Suspend for work of this rank.
var WorkLimit = workLimit
