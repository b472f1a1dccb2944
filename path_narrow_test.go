package symmem

import (
	"errors"

	"symmem/driver"
)

// A call takes a path, for example plain, window or direct. The communicator of a group makes an
// Offer for each call, which accepts or refuses each path. Once a path is chosen, the Offer becomes
// a plan, which can be launched.
//
// Tests replace some of the checks by which paths are refused. For example, if the check of the
// direct path always returns an error, no call takes this path. This file creates such groups, and
// returns the path of a call without launching it.

// pathCheck returns an error for a call that cannot take a path. A nil pathCheck stands for the
// check of the communicator.
type pathCheck = func(*driver.Call) error

// pathChecker is a Communicator with checks for three paths. Its plans cannot be launched.
type pathChecker struct {
	driver.Communicator
	plain, windowed, direct pathCheck
}

func (c pathChecker) Offer(call driver.Call) driver.Offer {
	return &checkedOffer{pathChecker: c, Offer: c.Communicator.Offer(call), call: call}
}

// checkedOffer is both the offer and the plan of a call.
type checkedOffer struct {
	pathChecker
	driver.Offer
	call driver.Call
}

// Refusal returns why the call cannot take the path, or nil if it can.
func (o *checkedOffer) Refusal(path driver.Path) error {
	checks := map[driver.Path]pathCheck{
		driver.PathPlain:  o.plain,
		driver.PathWindow: o.windowed,
		driver.PathDirect: o.direct,
	}
	if check := checks[path]; check != nil {
		return check(&o.call)
	}

	return o.Offer.Refusal(path)
}

// Take makes the offer a plan for the path. Ranks compare the digest of their calls.
func (o *checkedOffer) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	o.call.SetPath(path, digest)
	return o, nil
}

// Prepared returns the call of the plan.
func (o *checkedOffer) Prepared() *driver.Call { return &o.call }

// WithChecks returns a copy of g for Route and Explain, with checks for the window path and the
// direct path.
func WithChecks(g *Group, windowed, direct func(*driver.Call) error) *Group {
	var ownPlainCheck pathCheck // nil
	return WithPathChecks(g, ownPlainCheck, windowed, direct)
}

// WithPathChecks is WithChecks with a check for the plain path.
func WithPathChecks(g *Group, plain, windowed, direct func(*driver.Call) error) *Group {
	config := driver.GroupConfig{ID: g.fullID, Ranks: g.ranks, Rank: g.rank, Timeout: g.limit}
	life := newLifetime()
	checker := pathChecker{Communicator: g.comm, plain: plain, windowed: windowed, direct: direct}
	restricted := newGroup(g.rt, &config, checker, life)
	life.ctx = g.life.ctx // the copy ends with g
	restricted.router.tuning = g.router.tuning
	restricted.router.shape = g.router.shape
	restricted.router.choice.Store(g.router.choice.Load())
	restricted.windows.table.Store(g.windows.table.Load())
	restricted.windows.memberships.Store(g.windows.memberships.Load())
	return restricted
}

// Route returns the path of a call, the reason for the path, and the digest that ranks compare. If
// the call is rejected, path is empty and why is the text of the error.
func Route(g *Group, c Call) (path, why string, compared uint64) {
	call := collectiveOf(&c).call()
	places := g.calls.locations(&call) // which of its buffers are in windows
	offer, reason, err := g.router.route(c.Path, &call, places.where)
	if err != nil {
		return "", err.Error(), 0
	}

	const noTicket = 0
	digest := digestCall(g.calls.describe(&call, &places, noTicket))
	plan, err := offer.Take(call.Path, digest)
	if err != nil {
		return "", err.Error(), 0
	}

	prepared := plan.Prepared()
	if !hasWindowsOfPath(prepared) {
		// A mistake of package symmem. No test expects this path.
		return prepared.Path.String() + " with the windows of another path", reason.String(), 0
	}

	return prepared.Path.String(), reason.String(), prepared.Digest
}

// hasWindowsOfPath reports whether the call's windows, which are registered memory, fit its path:
// none on the plain path, and at least one on the window path. Other paths may have windows.
func hasWindowsOfPath(call *driver.Call) bool {
	hasWindows := call.SendWindow != nil || call.RecvWindow != nil
	switch call.Path {
	case driver.PathPlain:
		return !hasWindows
	case driver.PathWindow:
		return hasWindows
	default:
		return true
	}
}

// ListPaths returns the path of each call in the list that starts with c. The calls of a list are
// launched together. If a call is rejected, ListPaths also returns an error.
func ListPaths(g *Group, c Call) (paths []string, err error) {
	list, err := c.allCalls(g, 0)
	if err == nil {
		err = chooseListPath(&g.calls, list)
	}

	for _, next := range list {
		call := next.call()
		if _, _, routeErr := g.router.route(next.choice, &call, ""); routeErr != nil {
			err = errors.Join(err, routeErr)
		}

		paths = append(paths, call.Path.String())
	}

	return paths, err
}
