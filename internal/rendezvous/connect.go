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
	// Ranks lists the ranks that did not join, in ascending order.
	Ranks []int
	// Size is the number of ranks of the job.
	Size int
	// Err holds the error that ended the wait.
	Err error
}

// Error returns a message with at most 16 of the ranks.
func (e *AbsentError) Error() string {
	const limit = 16
	ranks, suffix := e.Ranks, ""
	if len(ranks) > limit {
		ranks, suffix = ranks[:limit], fmt.Sprintf(" and %d more", len(ranks)-limit)
	}
	return fmt.Sprintf("of %d ranks, ranks %v%s did not arrive: %v", e.Size, ranks, suffix, e.Err)
}

// Unwrap returns the error that ended the wait.
func (e *AbsentError) Unwrap() error { return e.Err }

// Connect connects to a world's store and returns once all ranks have called it. If the context
// ends first (after DefaultTimeout if it has no deadline), Connect returns an AbsentError with the
// ranks that did not join.
//
// All ranks must make the same number of calls, one after another. A rank may have several
// connections at once. A call that fails before it reaches the store does not count, so after an
// error all ranks should leave and start again.
//
// Clients of other jobs, of earlier attempts of this job, and of other calls of Connect use
// different keys. Attempts have different keys only if the launcher counts them.
//
// The Member represents this rank in the job. The caller must close it to leave the job.
func Connect(ctx context.Context, w World) (*Client, *Member, error) {
	if problem := w.problem(); problem != "" {
		return nil, nil, fmt.Errorf("connecting the ranks: %s", problem)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := connect(ctx, w)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting rank %d of %d (%s, store %s): %w",
			w.Rank, w.Size, w.Source, w.Route.Kind, err)
	}
	return m.store, m, nil
}

// maxHangUps limits the retries after a store has closed the connection at once. A store that is
// about to close does so once. A store that requires a different token does so every time.
const maxHangUps = 3

// connect implements Connect. It retries if the store is lost, because that store may belong to an
// earlier Connect at the same address.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		endpoint, err := pmiEndpoint(ctx, w.Route.FD, w.Rank == 0)
		if err != nil {
			return nil, err
		}
		w.Route = Route{Kind: RouteServe, Endpoint: endpoint}
	}
	hangUps := 0
	try := func(ctx context.Context) (*Member, error) { return attempt(ctx, w) }
	return retryUntil(ctx, try, func(err error) bool {
		if errors.Is(err, errClosedEarly) {
			hangUps++
		}
		return errors.Is(err, ErrLost) || errors.Is(err, errClosedEarly) && hangUps <= maxHangUps
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
		left := m.others(leftKey)
		for i := range left {
			left[i] = m.base + "/" + left[i]
		}
		m.service.keep(left)
	}
	return m, nil
}

// listenAddress returns the address to listen on for clients that connect to address. Unless the
// host is the loopback address, the server listens on all interfaces, because the host name may not
// resolve to an interface of this machine, for example in Kubernetes. The token excludes other
// clients.
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

// closeTimeout limits how long Close on the serving rank waits for ranks that have not left.
const closeTimeout = 30 * time.Second

// leaveTimeout limits exchanges with the store that may continue after a deadline, for example to
// announce that a rank leaves.
const leaveTimeout = 2 * time.Second
