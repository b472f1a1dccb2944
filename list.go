package symmem

import (
	"cmp"
	"context"
	"errors"

	"symmem/driver"
)

const maxList = 1 << 16

func queueList(ctx context.Context, g *Group, s *Stream, list []*collective) error {
	if s == nil {
		s = g.rt.stream
	}
	if err := cmp.Or(checkList(g, s, list), g.refusal()); err != nil {
		return err
	}
	noteGroup(s, g)
	for _, c := range list {
		v, err := enter(c.send.pool, c.recv.pool)
		if err != nil {
			return g.calls.wrap(c, err)
		}
		defer v.leave(c.send.pool, c.recv.pool)
	}
	g.calls.site.Store(list[0].site)
	plans, err := planList(ctx, g, s, list)
	if err != nil {
		return err
	}
	err = launchList(g, s, list[0], plans)
	for _, c := range list {
		if s.mustRecordUse(c) {
			s.useAgain(c.send, c.recv)
		}
	}
	return g.life.awaitCause(err)
}

func checkList(g *Group, s *Stream, list []*collective) error {
	if s.rt != g.rt {
		return invalid("a list of calls on group %s: the stream belongs to another runtime", g.id)
	}
	if len(list) > maxList {
		return invalid("a list of %d calls on group %s: at most %d are allowed", len(list), g.id, maxList)
	}
	for _, c := range list {
		if c.operation.PointToPoint() || c.operation == driver.AllReduceRMSNorm {
			return invalid("%v on group %s: this operation cannot be in a list of calls", c.operation, g.id)
		}
	}
	return nil
}

// planList validates all calls of a list before it prepares the first one.
func planList(
	ctx context.Context, g *Group, s *Stream, list []*collective,
) (plans []*collective, err error) {
	if err := choosePath(&g.calls, list); err != nil {
		return nil, err
	}
	plans = make([]*collective, len(list))
	for i, c := range list {
		if plans[i] = g.calls.cached(c); plans[i] == nil {
			if plans[i], err = g.calls.validCopy(c); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range list {
		if s.mustRecordUse(c) && g.life.fault.Load() != faultResolved {
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
		if g.rt.recording.active() {
			g.events.submit(p, list[i].site, s)
		}
	}
	return plans, nil
}

// choosePath makes all calls of a list of AllGatherV take the path of the largest call, so that a
// single launch can run all of them. A path that the caller has chosen is not changed.
func choosePath(pl *planner, list []*collective) error {
	if list[0].choice != PathDefault {
		return nil
	}
	largest, maxBytes := list[0], uint64(0)
	for _, c := range list {
		if c.operation != OpAllGatherV || len(list) == 1 || c.splits == nil {
			return nil
		}
		if bytes := uint64(c.splits.Total(c.operation)) * uint64(c.dataType.Size()); bytes > maxBytes {
			largest, maxBytes = c, bytes
		}
	}
	p := pl.cached(largest)
	var call driver.Call
	if p != nil {
		call = *p.plan.Prepared()
	} else {
		p, err := pl.validCopy(largest)
		if err != nil {
			return err
		}
		call = p.call()
		found := pl.locations(&call)
		if _, _, err := pl.router.route(p.choice, &call, found.where); err != nil {
			return pl.wrap(largest, err)
		}
	}
	for _, c := range list {
		if c != largest && call.Path == driver.PathDirect {
			c.choice = PathDirect
		} else if c != largest {
			c.choice = PathPlain
		}
	}
	return nil
}

// launchList launches plans as one call if the backend can combine them.
func launchList(g *Group, s *Stream, first *collective, plans []*collective) error {
	lister, ok := g.comm.(driver.Lister)
	if ok && len(plans) > 1 {
		prepared := make([]driver.Plan, len(plans))
		for i, p := range plans {
			prepared[i] = p.plan
		}
		plan, err := lister.List(prepared)
		if err == nil {
			for _, p := range plans {
				p.submit.Count()
			}
			combined := *plans[0]
			combined.plan = plan
			return g.launchOn(s, &combined, first.wait)
		}
		if !errors.Is(err, ErrUnsupported) {
			return err
		}
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
