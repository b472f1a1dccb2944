package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// AbsentError means that some ranks did not call Connect in time.
type AbsentError struct {
	Ranks []int // ranks known to be absent
	Size  int   // number of ranks of the world
	Err   error // such as the context's cause or an EndedError
}

func (e *AbsentError) Error() string {
	const maxListed = 16 // A longer list would hide the reason.
	listed := e.Ranks
	suffix := ""
	if len(e.Ranks) > maxListed {
		listed = e.Ranks[:maxListed]
		suffix = fmt.Sprintf(" and %d more", len(e.Ranks)-maxListed)
	}

	return fmt.Sprintf("of %d ranks, ranks %v%s did not arrive: %v", e.Size, listed, suffix, e.Err)
}

func (e *AbsentError) Unwrap() error { return e.Err }

// Connect waits until all ranks of the job that w describes have called Connect. It returns a
// client of the job's store and a Member. The caller must close the Member, which also closes the
// client.
//
// Connect returns an AbsentError if some ranks do not call it before ctx is done, or within
// DefaultTimeout if ctx has no deadline.
//
// After an error on any rank, all should leave and restart with a different World.Restart.
//
// The ranks that call Connect together form a world. If each calls it twice, there are two worlds.
func Connect(ctx context.Context, w World) (*Client, *Member, error) {
	if problem := w.describeProblem(); problem != "" {
		return nil, nil, fmt.Errorf("connecting the ranks: %s", problem)
	}

	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	m, err := connect(ctx, w)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting rank %d of %d (%s, store %s): %w",
			w.Rank, w.Size, w.Source, w.Route.Kind, err)
	}

	return m.worldClient, m, nil
}

// connect implements Connect for a valid World.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		isRank0 := w.Rank == 0
		endpoint, err := pmiEndpoint(ctx, w.Route.FD, isRank0)
		if err != nil {
			return nil, err
		}

		w.Route = Route{Kind: RouteServe, Endpoint: endpoint}
	}

	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // not an AbsentError: the other ranks may be on time
	}

	var losses storeLosses
	connectToWorld := func(ctx context.Context) (*Member, error) { return connectOnce(ctx, w) }
	m, err := callWithRetries(ctx, connectToWorld, losses.shouldRetry)
	hasGivenUp := err != nil && ctx.Err() != nil
	usesStoreOfRank0 := w.Route.Kind == RouteServe && w.Rank != 0
	if hasGivenUp && usesStoreOfRank0 && losses.hasLostStore {
		err = explainLostStore(err, &w)
	}

	return m, err
}

// storeLosses records whether calls of connectOnce have lost the store. They may connect to the
// store of the previous world, which rank 0 then closes.
type storeLosses struct {
	hasLostStore    bool
	earlyCloseCount int // number of errors that were errClosedEarly
}

// maxEarlyCloses limits the retries after errClosedEarly. A closing server causes this error about
// once, and a server with a different token causes it every time.
const maxEarlyCloses = 3

// shouldRetry records err, the error of connectOnce, and reports whether to try again.
func (s *storeLosses) shouldRetry(err error) bool {
	isLost := errors.Is(err, ErrLost)
	isClosedEarly := errors.Is(err, errClosedEarly)
	if isLost || isClosedEarly {
		s.hasLostStore = true
	}

	if isClosedEarly {
		s.earlyCloseCount++
	}

	mayBeClosing := isClosedEarly && s.earlyCloseCount <= maxEarlyCloses
	return isLost || mayBeClosing
}

// explainLostStore returns an AbsentError about rank 0, unless err names other ranks or an ended
// rank.
func explainLostStore(err error, w *World) error {
	if !shouldBlameRank0(err) {
		return err
	}

	// Without the store, this rank cannot find out whether rank 0 ended or left.
	end := &EndedError{
		Rank: 0, Description: "rank 0, which served the store, has ended or left",
	}
	reason := fmt.Errorf("%w: %w", end, err)
	return &AbsentError{Ranks: []int{0}, Size: w.Size, Err: reason}
}

func shouldBlameRank0(err error) bool {
	if errors.As(err, new(*EndedError)) {
		return false
	}

	if absent, isAbsent := errors.AsType[*AbsentError](err); isAbsent {
		return slices.Equal(absent.Ranks, []int{0})
	}

	return errors.Is(err, ErrLost) || errors.Is(err, errClosedEarly)
}

// connectOnce opens the store and joins the world, without retries.
func connectOnce(ctx context.Context, w World) (*Member, error) {
	m := &Member{world: w}
	if err := m.openStore(ctx); err != nil {
		return nil, err
	}

	if err := m.joinAndAwait(ctx); err != nil {
		closeErr := m.Close()
		return nil, errors.Join(err, closeErr)
	}

	if m.service != nil {
		m.service.addWorld(leaveKeysOf(m))
	}

	return m, nil
}

// leaveKeysOf returns the keys that the other ranks set when they leave m's world.
func leaveKeysOf(m *Member) []string {
	keys := m.otherRanksKeys(leftKey)
	for i, key := range keys {
		keys[i] = m.keyPrefix + "/" + key
	}

	return keys
}
