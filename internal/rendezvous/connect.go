package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// AbsentError means that some ranks did not call Connect in time.
type AbsentError struct {
	Ranks []int
	Size  int
	Err   error
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

// Connect connects to a world's store and waits until all ranks have called Connect. If ctx is
// canceled first, or after DefaultTimeout if ctx has no deadline, Connect returns an AbsentError
// that lists the ranks that did not join.
//
// All ranks must make the same number of calls, one after another. Each rank numbers its calls, and
// calls with the same number belong together. A rank may open a connection before it closes the
// previous one. After an error, the ranks' numbers may differ, so all ranks should leave and start
// again.
//
// Every call of Connect uses different keys. Attempts of a job have different keys only if the
// launcher counts its restarts.
//
// The caller must close the returned Member to leave the job.
func Connect(ctx context.Context, w World) (*Client, *Member, error) {
	if problem := w.problem(); problem != "" {
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

// maxClosedEarly bounds the retries after a store has closed a new connection immediately. A store
// that is shutting down does so only once. A store that requires a different token does so every
// time.
const maxClosedEarly = 3

// connect implements Connect. It retries after ErrLost, because the lost store may have belonged to
// an earlier call of Connect.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		endpoint, err := pmiEndpoint(ctx, w.Route.FD, w.Rank == 0)
		if err != nil {
			return nil, err
		}
		w.Route = Route{Kind: RouteServe, Endpoint: endpoint}
	}
	closedEarly := 0
	try := func(ctx context.Context) (*Member, error) { return attempt(ctx, w) }
	return retryUntil(ctx, try, func(err error) bool {
		if errors.Is(err, errClosedEarly) {
			closedEarly++
		}
		return errors.Is(err, ErrLost) ||
			errors.Is(err, errClosedEarly) && closedEarly <= maxClosedEarly
	})
}

func attempt(ctx context.Context, w World) (*Member, error) {
	m := &Member{world: w}
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	if err := m.joinAll(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if m.service != nil {
		left := m.otherKeys(leftKey)
		for i := range left {
			left[i] = m.base + "/" + left[i]
		}
		m.service.addWorld(left)
	}
	return m, nil
}

// listenAddress returns the address to listen on for clients that connect to address. Except for
// loopback addresses, it covers all interfaces, because the host name may not resolve to an
// interface of this machine (in Kubernetes, for example).
func listenAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, unixScheme) {
		return address
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return address
	}
	return net.JoinHostPort("", port)
}

const closeTimeout = 30 * time.Second

// leaveTimeout bounds requests to the store that may continue after the caller's deadline.
const leaveTimeout = 2 * time.Second
