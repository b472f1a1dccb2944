package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// A program that gathers 3 tensors of different sizes can pass its 3 AllGatherV calls as a list.
// The group prepares each call: it chooses a path, which is the way in which the call runs, and
// makes a plan for the backend. If the backend can combine the 3 plans, one launch runs all calls.
// Otherwise, the group launches them one by one.

// maxListCalls limits the length of a list. It is more than any program is expected to need.
const maxListCalls = 1 << 16

// queueList queues a list of calls on a stream. A nil stream stands for the default stream. The
// list must not be empty.
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

	g.calls.site.Store(calls[0].site) // the line of code that makes the call, for errors
	prepared, err := prepareList(ctx, g, s, calls)
	if err != nil {
		return err
	}

	isWaiting := calls[0].wait
	launchErr := launchList(g, s, prepared, isWaiting)
	for _, c := range calls {
		if s.mustRecordUse(c) {
			s.useAgain(c.send, c.recv) // a Synchronize may have ended the use before the launch
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
		// The operations from AllReduceRMSNorm on have their own types of arguments.
		isSpecial := c.operation >= driver.AllReduceRMSNorm
		if isSpecial || c.operation.PointToPoint() {
			return invalid("%v on group %s: this operation cannot be in a list of calls",
				c.operation, g.id)
		}
	}

	return nil
}

// prepareList returns the prepared calls of a list. It also records that the stream uses the calls'
// buffers, so that their memory is not reused too early.
func prepareList(
	ctx context.Context, g *Group, s *Stream, calls []*collective,
) ([]*collective, error) {
	if err := chooseListPath(&g.calls, calls); err != nil {
		return nil, err
	}

	prepared, err := findOrValidate(&g.calls, calls)
	if err != nil {
		return nil, err
	}

	if err := recordListUses(g, s, calls); err != nil {
		return nil, err
	}

	for i, p := range prepared {
		isPrepared := p.plan != nil
		if !isPrepared {
			if err := g.calls.prepare(ctx, p, s); err != nil {
				g.life.failStream(s)
				return nil, err
			}
		}

		if g.rt.recording.isActive() {
			g.events.submit(p, calls[i].site, s)
		}
	}

	return prepared, nil
}

// findOrValidate returns the cached prepared call for each call. For a call without one, it returns
// a validated copy that has no plan yet. All calls are thus validated before one is prepared.
func findOrValidate(planner *planner, calls []*collective) ([]*collective, error) {
	found := make([]*collective, len(calls))
	for i, c := range calls {
		found[i] = planner.cachedPlan(c)
		if found[i] != nil {
			continue
		}

		validated, err := planner.validatedCopy(c)
		if err != nil {
			return nil, err
		}

		found[i] = validated
	}

	return found, nil
}

// recordListUses records that the stream uses the calls' buffers. It does nothing if the group has
// failed and the fault has been repaired.
func recordListUses(g *Group, s *Stream, calls []*collective) error {
	for _, c := range calls {
		if s.mustRecordUse(c) && g.life.faultState.Load() != faultRepaired {
			if err := s.useBoth(c.send, c.recv); err != nil {
				return err
			}
		}
	}

	return nil
}

// chooseListPath makes all calls of a list take the path of the largest call, so that one launch
// can run them. It changes only lists of several AllGatherV whose first call leaves the choice of
// the path to symmem.
func chooseListPath(planner *planner, calls []*collective) error {
	if len(calls) == 1 || calls[0].choice != PathDefault {
		return nil
	}

	largest := largestGather(calls)
	if largest == nil {
		return nil
	}

	path, err := pathOfCall(planner, largest)
	if err != nil {
		return err
	}

	choice := PathPlain
	if path == driver.PathDirect { // an AllGatherV has no other path
		choice = PathDirect
	}

	for _, c := range calls {
		if c != largest {
			c.choice = choice
		}
	}

	return nil
}

// largestGather returns the AllGatherV that gathers the most bytes. If a call is no AllGatherV, or
// has no splits, it returns nil.
func largestGather(calls []*collective) *collective {
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

	return largest
}

// pathOfCall returns the path that a call takes.
func pathOfCall(planner *planner, c *collective) (driver.Path, error) {
	if cached := planner.cachedPlan(c); cached != nil {
		return cached.plan.Prepared().Path, nil
	}

	validated, err := planner.validatedCopy(c)
	if err != nil {
		return 0, err
	}

	call := validated.call()
	buffers := planner.setWindows(&call)
	_, _, err = planner.router.route(validated.choice, &call, buffers.reason) // sets call.Path
	if err != nil {
		return 0, planner.wrapError(c, err)
	}

	return call.Path, nil
}

// launchList launches prepared calls, in one launch if the backend can combine them. isWaiting is
// true if the caller waits for the stream next.
func launchList(g *Group, s *Stream, prepared []*collective, isWaiting bool) error {
	if len(prepared) > 1 {
		combined, err := combine(g, prepared)
		if err == nil {
			for _, p := range prepared {
				p.submit.Count() // counts the call for the live view, without its time
			}

			return g.launchOn(s, combined, isWaiting)
		}

		canLaunchSeparately := errors.Is(err, ErrUnsupported)
		if !canLaunchSeparately {
			return err
		}
	}

	for _, p := range prepared {
		begin := p.submit.Begin()
		if err := g.launchOn(s, p, isWaiting); err != nil {
			return err
		}

		p.submit.End(begin)
	}

	return nil
}

// combine returns one prepared call that runs all the given ones. If the backend cannot combine
// them, the error is ErrUnsupported.
func combine(g *Group, prepared []*collective) (*collective, error) {
	lister, canList := g.comm.(driver.Lister)
	if !canList {
		return nil, ErrUnsupported
	}

	plans := make([]driver.Plan, len(prepared))
	for i, p := range prepared {
		plans[i] = p.plan
	}

	plan, err := lister.List(plans)
	if err != nil {
		return nil, err
	}

	combined := *prepared[0] // a copy, because prepared[0] can be in the cache
	combined.plan = plan
	return &combined, nil
}
