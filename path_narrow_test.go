package symmem

import (
	"errors"

	"symmem/driver"
)

// A communicator offers a call some paths, such as plain, window or direct, and refuses the others.
// These helpers replace its checks, and find the path of a call without launching it.

// pathCheck returns an error if the call cannot take a path.
type pathCheck func(*driver.Call) error

type pathChecker struct {
	driver.Communicator
	checks map[driver.Path]pathCheck // nil functions select the communicator's checks
}

func (c pathChecker) Offer(call driver.Call) driver.Offer {
	return &checkedOffer{checks: c.checks, original: c.Communicator.Offer(call), call: call}
}

type checkedOffer struct {
	checks   map[driver.Path]pathCheck
	original driver.Offer
	call     driver.Call
}

func (o *checkedOffer) Refusal(path driver.Path) error {
	if check := o.checks[path]; check != nil {
		return check(&o.call)
	}

	return o.original.Refusal(path)
}

func (o *checkedOffer) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	o.call.SetPath(path, digest)
	return &checkedPlan{call: o.call}, nil
}

type checkedPlan struct{ call driver.Call }

func (p *checkedPlan) Prepared() *driver.Call { return &p.call }

// WithChecks is WithPathChecks with the communicator's check of the plain path.
func WithChecks(g *Group, window, direct pathCheck) *Group {
	var plain pathCheck
	return WithPathChecks(g, plain, window, direct)
}

// WithPathChecks returns a copy of g that replaces the communicator's checks unless they are nil.
// The copy cannot launch calls.
func WithPathChecks(g *Group, plain, window, direct pathCheck) *Group {
	config := driver.GroupConfig{ID: g.fullID, Ranks: g.ranks, Rank: g.rank, Timeout: g.limit}
	checker := pathChecker{Communicator: g.comm, checks: map[driver.Path]pathCheck{
		driver.PathPlain:  plain,
		driver.PathWindow: window,
		driver.PathDirect: direct,
	}}
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
	found := g.calls.setWindows(&call)
	offer, reason, err := g.router.route(c.Path, &call, found.reason)
	if err != nil {
		return "", err.Error(), 0
	}

	const unknownTicket = 0
	digest = digestCall(g.calls.describe(&call, &found, unknownTicket))
	plan, err := offer.Take(call.Path, digest)
	if err != nil {
		return "", err.Error(), 0
	}

	prepared := plan.Prepared()
	path = prepared.Path.String()
	if !windowsMatchPath(prepared) {
		path += " with the windows of another path" // no test accepts this path
	}

	return path, reason.String(), prepared.Digest
}

func windowsMatchPath(call *driver.Call) bool {
	hasWindows := call.SendWindow != nil || call.RecvWindow != nil
	switch call.Path {
	case driver.PathPlain:
		return !hasWindows
	case driver.PathWindow:
		return hasWindows
	default:
		return true // PathDirect and PathTwoLevel work with and without windows
	}
}

// ListPaths returns the paths of c and of the calls in c.More, and the errors of rejected calls.
func ListPaths(g *Group, c Call) (paths []string, err error) {
	const unknownSite = 0
	list, err := c.allCalls(g, unknownSite)
	if err != nil {
		return nil, err
	}

	err = chooseListPath(&g.calls, list)
	for _, next := range list {
		call := next.call()
		_, _, routeErr := g.router.route(next.choice, &call, "") // sets call.Path
		err = errors.Join(err, routeErr)
		paths = append(paths, call.Path.String())
	}

	return paths, err
}
