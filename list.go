package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// maxListCalls limits the length of a list. It is more than any program is expected to need.
const maxListCalls = 1 << 16

// queueList queues a list of calls (Call.More) on a stream, in one launch if the backend can. A
// nil stream stands for the default stream. The list must not be empty.
func queueList(ctx context.Context, g *Group, s *Stream, calls []*collective) error {
	if s == nil {
		s = g.rt.stream
	}

	if err := checkList(g, s, calls); err != nil {
		return err
	}

	if err := g.refusal(); err != nil {
		return err
	}

	recordGroupInCapture(s, g)
	for _, c := range calls {
		use, err := enterPools(c.send.pool, c.recv.pool)
		if err != nil {
			return g.calls.wrapError(c, err)
		}
		defer use.leave(c.send.pool, c.recv.pool) // after the launch
	}

	g.calls.site.Store(calls[0].site)
	plans, err := planList(ctx, g, s, calls)
	if err != nil {
		return err
	}

	launchErr := launchList(g, s, calls[0], plans)
	for _, c := range calls {
		if s.mustRecordUse(c) {
			s.useAgain(c.send, c.recv) // planList's record may have been removed before the launch
		}
	}

	return g.life.awaitFault(launchErr)
}

// checkList returns an error if the calls cannot be in one list on the stream.
func checkList(g *Group, s *Stream, calls []*collective) error {
	if s.rt != g.rt {
		return invalid("a list of calls on group %s: the stream belongs to another runtime", g.id)
	}

	if len(calls) > maxListCalls {
		return invalid("a list of %d calls on group %s: at most %d are allowed", len(calls), g.id,
			maxListCalls)
	}

	for _, c := range calls {
		// The operations from AllReduceRMSNorm on have arguments of their own types.
		isSpecial := c.operation >= driver.AllReduceRMSNorm
		if c.operation.PointToPoint() || isSpecial {
			return invalid("%v on group %s: this operation cannot be in a list of calls", c.operation, g.id)
		}
	}

	return nil
}

// planList returns the plans (prepared calls) of a list, and records the calls' uses of buffers. It
// validates all calls before it prepares the first one.
func planList(
	ctx context.Context, g *Group, s *Stream, calls []*collective,
) ([]*collective, error) {
	if err := chooseListPath(&g.calls, calls); err != nil {
		return nil, err
	}

	plans := make([]*collective, len(calls))
	for i, c := range calls {
		plans[i] = g.calls.cachedPlan(c)
		if plans[i] != nil {
			continue
		}

		validated, err := g.calls.validatedCopy(c) // its plan field is nil until prepare
		if err != nil {
			return nil, err
		}

		plans[i] = validated
	}

	for _, c := range calls {
		if s.mustRecordUse(c) && g.life.fault.Load() != faultRepaired {
			if err := s.useBoth(c.send, c.recv); err != nil {
				return nil, err
			}
		}
	}

	for i, p := range plans {
		if p.plan == nil {
			if err := g.calls.prepare(ctx, p, s); err != nil {
				return nil, g.life.failStream(s, err)
			}
		}

		if g.rt.recording.isActive() {
			g.events.submit(p, calls[i].site, s)
		}
	}

	return plans, nil
}

// chooseListPath sets the path (the way in which a call runs) of the calls of a list. All take the
// path of the largest call, so that one launch can run all of them. chooseListPath changes only
// lists of several AllGatherV whose first call does not choose a path.
func chooseListPath(planner *planner, calls []*collective) error {
	if len(calls) == 1 || calls[0].choice != PathDefault {
		return nil
	}

	largest := calls[0]
	maxBytes := uint64(0)
	for _, c := range calls {
		if c.operation != OpAllGatherV || c.splits == nil {
			return nil
		}

		bytes := uint64(c.splits.Total(c.operation)) * uint64(c.dataType.Size())
		if bytes > maxBytes {
			largest, maxBytes = c, bytes
		}
	}

	var call driver.Call
	if cached := planner.cachedPlan(largest); cached != nil {
		call = *cached.plan.Prepared()
	} else {
		validated, err := planner.validatedCopy(largest)
		if err != nil {
			return err
		}

		call = validated.call()
		buffers := planner.locations(&call)
		if _, _, err := planner.router.route(validated.choice, &call, buffers.where); err != nil {
			return planner.wrapError(largest, err)
		}
	}

	othersChoice := PathPlain
	if call.Path == driver.PathDirect {
		othersChoice = PathDirect
	}

	for _, c := range calls {
		if c != largest {
			c.choice = othersChoice
		}
	}

	return nil
}

// launchList launches the plans in one launch if the backend can combine them, and otherwise one
// by one. It waits for the result if first, the first call of the list, asks for that.
func launchList(g *Group, s *Stream, first *collective, plans []*collective) error {
	lister, canList := g.comm.(driver.Lister)
	if canList && len(plans) > 1 {
		driverPlans := make([]driver.Plan, len(plans))
		for i, p := range plans {
			driverPlans[i] = p.plan
		}

		plan, err := lister.List(driverPlans)
		if err == nil {
			for _, p := range plans {
				p.submit.Count()
			}

			combined := *plans[0] // a copy, because plans[0] stays in the cache
			combined.plan = plan
			return g.launchOn(s, &combined, first.wait)
		}

		if !errors.Is(err, ErrUnsupported) {
			return err
		}

		// The backend cannot combine these plans: launch them one by one.
	}

	for _, p := range plans {
		begin := p.submit.Begin()
		if err := g.launchOn(s, p, first.wait); err != nil {
			return err
		}

		p.submit.End(begin)
	}

	return nil
}
