package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// The ranks of a job share a store of keys and values. Suppose that there are two ranks, and that
// rank 0 serves the store:
//
//   - Each rank calls Connect, and gets a Member. Both Members belong to one world. The keys of a
//     world begin with a common prefix, such as "symmem/run5/0/2/1".
//   - The program closes the Members. Rank 0 waits until rank 1 has left, and closes the store.
//   - The program calls Connect again, for a second world. If rank 1 is early, it may reach the
//     store of the first world, which is about to close. It loses this store, and tries again until
//     rank 0 serves the next one.

// AbsentError means that some ranks did not call Connect in time.
type AbsentError struct {
	Ranks []int // ranks that are known to be absent
	Size  int   // number of ranks of the world
	Err   error // reason, such as the end of the context or an EndedError
}

func (e *AbsentError) Error() string {
	const maxListed = 16 // more numbers would hide the reason
	listed := e.Ranks
	suffix := ""
	if len(e.Ranks) > maxListed {
		listed = e.Ranks[:maxListed]
		suffix = fmt.Sprintf(" and %d more", len(e.Ranks)-maxListed)
	}

	return fmt.Sprintf("of %d ranks, ranks %v%s did not arrive: %v", e.Size, listed, suffix, e.Err)
}

func (e *AbsentError) Unwrap() error { return e.Err }

// Connect connects to the store of a job and waits until all ranks of the job have called Connect.
// w describes the job and the rank of this process. Connect returns a client of the store and a
// Member. The caller must close the Member, which also closes the client.
//
// It returns an AbsentError if some ranks do not call Connect before ctx is canceled. If ctx has no
// deadline, it waits up to DefaultTimeout.
//
// The n-th calls of all ranks belong together: they form a world. After an error, all ranks should
// leave and restart with a different World.Restart.
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

	return m.store, m, nil
}

// connect is Connect without a default timeout.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		isLeader := w.Rank == 0
		endpoint, err := pmiEndpoint(ctx, w.Route.FD, isLeader)
		if err != nil {
			return nil, err
		}

		w.Route = Route{Kind: RouteServe, Endpoint: endpoint}
	}

	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // This rank is late itself, so it must not blame others.
	}

	var losses storeLosses
	connectToWorld := func(ctx context.Context) (*Member, error) { return connectOnce(ctx, w) }
	m, err := callWithRetries(ctx, connectToWorld, losses.shouldRetry)
	isServedByOther := w.Route.Kind == RouteServe && w.Rank != 0
	hasTimedOut := ctx.Err() != nil
	if losses.hasAny && hasTimedOut && isServedByOther {
		err = explainLostStore(err, &w)
	}

	return m, err
}

// storeLosses records how calls of connectOnce have lost the store.
type storeLosses struct {
	hasAny          bool
	earlyCloseCount int // number of errors that were errClosedEarly
}

// maxEarlyCloses limits how often the client tries again after errClosedEarly: the store has closed
// a connection before it has accepted the token. A store that shuts down does this about once. A
// store that requires a different token does it always.
const maxEarlyCloses = 3

// shouldRetry records err, the error of connectOnce, and reports whether to try again.
func (s *storeLosses) shouldRetry(err error) bool {
	isLost := errors.Is(err, ErrLost)
	isClosedEarly := errors.Is(err, errClosedEarly)
	if isLost || isClosedEarly {
		s.hasAny = true
	}

	if isClosedEarly {
		s.earlyCloseCount++
	}

	mayBeClosing := isClosedEarly && s.earlyCloseCount <= maxEarlyCloses
	return isLost || mayBeClosing
}

// explainLostStore is called if a call of connect has timed out, and has lost rank 0's store before
// that. If err only means that the store is lost or missing, it returns an AbsentError about the
// end of rank 0. It returns other errors unchanged.
func explainLostStore(err error, w *World) error {
	if errors.As(err, new(*EndedError)) {
		return err // It already names the rank.
	}

	var absent *AbsentError
	isAbsentError := errors.As(err, &absent)
	isMissing := isAbsentError && slices.Equal(absent.Ranks, []int{0})
	isLost := !isAbsentError && (errors.Is(err, ErrLost) || errors.Is(err, errClosedEarly))
	if !isMissing && !isLost {
		return err
	}

	// Without a connection to the store, this rank cannot know whether rank 0 ended or left.
	end := &EndedError{Rank: 0, Description: storeRankEnded + " or left"}
	reason := fmt.Errorf("%w: %w", end, err)
	return &AbsentError{Ranks: []int{0}, Size: w.Size, Err: reason}
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

	isServer := m.service != nil
	if isServer { // The service closes the store after the other ranks have left this world.
		m.service.addWorld(leaveKeysOf(m))
	}

	return m, nil
}

// leaveKeysOf returns the keys that the other ranks set when they leave the world of m.
func leaveKeysOf(m *Member) []string {
	keys := m.otherRanksKeys(leftKey)
	for i := range keys {
		keys[i] = m.keyPrefix + "/" + keys[i]
	}

	return keys
}

// listenAddress returns the address at which rank 0 listens if the other ranks connect to address.
//
// For TCP, it is the same port on all network interfaces. The host name of address may belong to
// none of them, for example in Kubernetes. Unix sockets and loopback addresses stay unchanged.
func listenAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, unixScheme) {
		return address
	}

	ip := net.ParseIP(host)
	isLoopback := host == "localhost" || (ip != nil && ip.IsLoopback())
	if isLoopback {
		return address
	}

	return net.JoinHostPort("", port)
}

// closeTimeout limits Member.Close, which on rank 0 waits for the other ranks.
const closeTimeout = 30 * time.Second

// lateRequestTimeout limits requests that may continue after the caller's deadline. A running store
// answers much sooner.
const lateRequestTimeout = 2 * time.Second
