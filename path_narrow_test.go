package symmem

import (
	"errors"

	"symmem/driver"
)

// pathChecker is a Communicator for tests that choose which paths a call can take. Its plans
// cannot be launched.
type pathChecker struct {
	driver.Communicator
	// These functions return an error for a call that cannot take the path. A nil function stands
	// for the check of the Communicator.
	plain, windowed, direct func(*driver.Call) error
}

func (c pathChecker) Offer(call driver.Call) driver.Offer {
	return &checkedOffer{c, c.Communicator.Offer(call), call}
}

// checkedOffer is both the offer and the plan of a call.
type checkedOffer struct {
	pathChecker
	driver.Offer
	call driver.Call
}

func (o *checkedOffer) Refusal(path driver.Path) error {
	switch {
	case path == driver.PathPlain && o.plain != nil:
		return o.plain(&o.call)
	case path == driver.PathWindow && o.windowed != nil:
		return o.windowed(&o.call)
	case path == driver.PathDirect && o.direct != nil:
		return o.direct(&o.call)
	}
	return o.Offer.Refusal(path)
}

func (o *checkedOffer) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	o.call.SetPath(path, digest)
	return o, nil
}

func (o *checkedOffer) Prepared() *driver.Call { return &o.call }

// WithChecks returns a copy of g for Route and Explain, with checks for the window path and the
// direct path. A check returns an error for a call that cannot take the path. A nil check stands
// for the check of g's own communicator.
func WithChecks(g *Group, windowed, direct func(*driver.Call) error) *Group {
	return WithPathChecks(g, nil, windowed, direct)
}

// WithPathChecks is WithChecks with a check for the plain path.
func WithPathChecks(g *Group, plain, windowed, direct func(*driver.Call) error) *Group {
	config := driver.GroupConfig{ID: g.fullID, Ranks: g.ranks, Rank: g.rank, Timeout: g.limit}
	life := newLifetime()
	restricted := newGroup(g.rt, &config, pathChecker{g.comm, plain, windowed, direct}, life)
	life.ctx = g.life.ctx
	restricted.router.tuning, restricted.router.shape = g.router.tuning, g.router.shape
	restricted.router.choice.Store(g.router.choice.Load())
	restricted.windows.table.Store(g.windows.table.Load())
	restricted.windows.memberships.Store(g.windows.memberships.Load())
	return restricted
}

// Route returns the path of a call, the reason for the path, and the digest that ranks compare. If
// the call is rejected, path is empty and why is the text of the error.
func Route(g *Group, c Call) (path, why string, compared uint64) {
	call := collectiveOf(&c).call()
	places := g.calls.locations(&call)
	offer, reason, err := g.router.route(c.Path, &call, places.where)
	if err != nil {
		return "", err.Error(), 0
	}
	plan, err := offer.Take(call.Path, digestCall(g.calls.describe(&call, &places, 0)))
	if err != nil {
		return "", err.Error(), 0
	}
	prepared := plan.Prepared()
	hasWindows := prepared.SendWindow != nil || prepared.RecvWindow != nil
	if hasWindows && prepared.Path == driver.PathPlain ||
		!hasWindows && prepared.Path == driver.PathWindow {
		return prepared.Path.String() + " with the windows of another path", reason.String(), 0
	}
	return prepared.Path.String(), reason.String(), prepared.Digest
}

// ListPaths returns the path of each call in the list that starts with c.
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
