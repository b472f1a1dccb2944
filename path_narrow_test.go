package symmem

import (
	"errors"

	"symmem/driver"
)

// These helpers find the path of a call, such as plain, window or direct, without launching the
// call. They can replace the checks with which a communicator refuses a path.

// pathCheck returns an error if the call cannot take a path. Nil means the communicator's check.
type pathCheck = func(*driver.Call) error

type pathChecker struct {
	driver.Communicator
	plain, window, direct pathCheck
}

func (c pathChecker) Offer(call driver.Call) driver.Offer {
	return &checkedOffer{pathChecker: c, Offer: c.Communicator.Offer(call), call: call}
}

// checkedOffer is an offer of paths and also the plan that Take returns.
type checkedOffer struct {
	pathChecker
	driver.Offer
	call driver.Call
}

func (o *checkedOffer) Refusal(path driver.Path) error {
	checks := map[driver.Path]pathCheck{
		driver.PathPlain:  o.plain,
		driver.PathWindow: o.window,
		driver.PathDirect: o.direct,
	}
	if check := checks[path]; check != nil {
		return check(&o.call)
	}

	return o.Offer.Refusal(path)
}

func (o *checkedOffer) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	o.call.SetPath(path, digest)
	return o, nil
}

func (o *checkedOffer) Prepared() *driver.Call { return &o.call }

// WithChecks is WithPathChecks with the communicator's check of the plain path.
func WithChecks(g *Group, window, direct pathCheck) *Group {
	var plain pathCheck // the communicator's check
	return WithPathChecks(g, plain, window, direct)
}

// WithPathChecks returns a copy of g that uses the checks and cannot launch calls.
func WithPathChecks(g *Group, plain, window, direct pathCheck) *Group {
	config := driver.GroupConfig{ID: g.fullID, Ranks: g.ranks, Rank: g.rank, Timeout: g.limit}
	checker := pathChecker{Communicator: g.comm, plain: plain, window: window, direct: direct}
	life := newLifetime()
	checked := newGroup(g.rt, &config, checker, life)
	life.ctx = g.life.ctx // the copy ends with g
	checked.router.tuning = g.router.tuning
	checked.router.shape = g.router.shape
	checked.router.choice.Store(g.router.choice.Load())
	checked.windows.table.Store(g.windows.table.Load())
	checked.windows.memberships.Store(g.windows.memberships.Load())
	return checked
}

// Route returns the path of a call, the reason for it, and the digest that ranks compare. If the
// call is rejected, path is empty and why is the text of the error.
func Route(g *Group, c Call) (path, why string, digest uint64) {
	call := collectiveOf(&c).call()
	places := g.calls.setWindows(&call)
	offer, reason, err := g.router.route(c.Path, &call, places.reason)
	if err != nil {
		return "", err.Error(), 0
	}

	const noCallNumber = 0
	digest = digestCall(g.calls.describe(&call, &places, noCallNumber))
	plan, err := offer.Take(call.Path, digest)
	if err != nil {
		return "", err.Error(), 0
	}

	prepared := plan.Prepared()
	if !hasWindowsOfPath(prepared) {
		// The caller's test fails, because no test expects this text.
		return prepared.Path.String() + " with the windows of another path", reason.String(), 0
	}

	return prepared.Path.String(), reason.String(), prepared.Digest
}

// hasWindowsOfPath reports whether the call's path and its use of registered memory agree.
func hasWindowsOfPath(call *driver.Call) bool {
	hasWindows := call.SendWindow != nil || call.RecvWindow != nil
	switch call.Path {
	case driver.PathPlain:
		return !hasWindows
	case driver.PathWindow:
		return hasWindows
	default: // PathDirect and PathTwoLevel, with or without windows
		return true
	}
}

// ListPaths returns the paths of c and of the calls in c.More, and the errors of rejected calls.
func ListPaths(g *Group, c Call) (paths []string, err error) {
	list, err := c.allCalls(g, 0)
	if err == nil {
		err = chooseListPath(&g.calls, list)
	}

	for _, next := range list {
		call := next.call()
		_, _, routeErr := g.router.route(next.choice, &call, "") // sets call.Path
		err = errors.Join(err, routeErr)
		paths = append(paths, call.Path.String())
	}

	return paths, err
}
