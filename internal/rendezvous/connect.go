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

// AbsentError means that some ranks did not call Connect in time.
type AbsentError struct {
	Ranks []int // ranks that are absent, as far as known
	Size  int   // number of ranks of the world
	Err   error // reason, such as the end of the context or an EndedError
}

func (e *AbsentError) Error() string {
	const limit = 16
	ranks, suffix := e.Ranks, ""
	if len(ranks) > limit {
		ranks, suffix = ranks[:limit], fmt.Sprintf(" and %d more", len(ranks)-limit)
	}
	return fmt.Sprintf("of %d ranks, ranks %v%s did not arrive: %v", e.Size, ranks, suffix, e.Err)
}

func (e *AbsentError) Unwrap() error { return e.Err }

// Connect connects to a world's store and waits until all ranks have called Connect. It returns a
// client of the store, and the Member that the caller must close, which closes the client too. If
// ctx is canceled first, or after DefaultTimeout if ctx has no deadline, it returns an
// AbsentError.
//
// The n-th calls of all ranks form one world, with different keys than other worlds. After an
// error, all ranks should leave and restart with a different World.Restart.
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

// maxEarlyCloses is the number of new connections that a store may close before the handshake has
// ended until the client gives up. A store that shuts down closes a new connection once. A store
// that requires a different token closes every new connection.
const maxEarlyCloses = 3

// connect is Connect without a default timeout. It retries after ErrLost, because the store may be
// the closing store of an earlier call.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		endpoint, err := pmiEndpoint(ctx, w.Route.FD, w.Rank == 0)
		if err != nil {
			return nil, err
		}
		w.Route = Route{Kind: RouteServe, Endpoint: endpoint}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // This rank is late itself, so it must not blame others.
	}
	earlyCloseCount := 0
	hasLostStore := false // an attempt lost its connection to the store
	call := func(ctx context.Context) (*Member, error) { return connectOnce(ctx, w) }
	m, err := callWithRetries(ctx, call, func(err error) bool {
		isLost, isClosedEarly := errors.Is(err, ErrLost), errors.Is(err, errClosedEarly)
		hasLostStore = hasLostStore || isLost || isClosedEarly
		if isClosedEarly {
			earlyCloseCount++
		}
		return isLost || isClosedEarly && earlyCloseCount <= maxEarlyCloses
	})
	if hasLostStore && ctx.Err() != nil && w.Route.Kind == RouteServe && w.Rank != 0 {
		err = explainLostStore(err, &w)
	}
	return m, err
}

// explainLostStore returns an AbsentError about the end of rank 0 if err means that its store is
// lost or missing. Otherwise, it returns err. This rank must have lost a connection to that store
// before.
func explainLostStore(err error, w *World) error {
	var absent *AbsentError
	switch {
	case errors.As(err, new(*EndedError)):
		return err
	case errors.As(err, &absent) && slices.Equal(absent.Ranks, []int{0}):
	case absent == nil && (errors.Is(err, ErrLost) || errors.Is(err, errClosedEarly)):
	default:
		return err
	}
	// Only a rank that has sent a greeting learns whether rank 0 ended or left.
	end := &EndedError{Rank: 0, Description: storeRankEnded + " or left"}
	return &AbsentError{Ranks: []int{0}, Size: w.Size, Err: fmt.Errorf("%w: %w", end, err)}
}

// connectOnce opens the store and joins the world, without retries.
func connectOnce(ctx context.Context, w World) (*Member, error) {
	m := &Member{world: w}
	if err := m.openStore(ctx); err != nil {
		return nil, err
	}
	if err := m.joinAndAwait(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if m.service != nil {
		leaveKeys := m.otherRanksKeys(leftKey)
		for i := range leaveKeys {
			leaveKeys[i] = m.keyPrefix + "/" + leaveKeys[i]
		}
		m.service.addWorld(leaveKeys)
	}
	return m, nil
}

// listenAddress returns the address at which rank 0 listens if the other ranks connect to address:
// the port on all network interfaces, because the host name may belong to none of them (in
// Kubernetes, for example). It returns the addresses of Unix sockets and loopback unchanged.
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

// closeTimeout limits Member.Close.
const closeTimeout = 30 * time.Second

// lateRequestTimeout bounds requests that may continue after the caller's deadline.
const lateRequestTimeout = 2 * time.Second
