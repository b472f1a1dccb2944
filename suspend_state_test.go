package symmem

import "context"

// EnterPool begins a call that uses memory of a pool. The returned function ends the call.
func EnterPool(p *Pool) (leave func()) {
	pass, _ := p.calls.Enter()
	return func() { p.calls.Leave(pass) }
}

// ChangesSuspension reports whether Suspend or Resume of a pool is in progress on this rank.
func ChangesSuspension(p *Pool) bool {
	return SuspendingPool(nil, p) || ResumingPool(nil, p)
}

// CloseAfter closes a pool after the function wait has waited for the work of this rank.
func CloseAfter(p *Pool, wait func(context.Context) error) error { return p.closeAfter(wait) }

// WorkLimit returns the time for which Suspend waits, at each step, for work of this rank.
var WorkLimit = workLimit

// SuspendingPool reports whether Pool.Suspend is in progress on this rank.
func SuspendingPool(_ *Group, p *Pool) bool { return p.suspender.state.Load() == stateSuspending }

// ResumingPool reports whether Pool.Resume is in progress.
func ResumingPool(_ *Group, p *Pool) bool { return p.suspender.state.Load() == stateResuming }

// SuspendingGroup reports whether Group.Suspend is in progress.
func SuspendingGroup(g *Group, _ *Pool) bool { return g.suspendState.Load() == stateSuspending }

// ResumingGroup reports whether Group.Resume is in progress.
func ResumingGroup(g *Group, _ *Pool) bool { return g.suspendState.Load() == stateResuming }
