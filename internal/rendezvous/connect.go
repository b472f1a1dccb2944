package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// AbsentError means that not all ranks came to Connect in time.
type AbsentError struct {
	// Ranks are those that did not come, in ascending order.
	Ranks []int
	// Size is how many ranks the job has.
	Size int
	// Err is the error that ended the wait.
	Err error
}

// Error names at most 16 ranks.
func (e *AbsentError) Error() string {
	const most = 16
	ranks, more := e.Ranks, ""
	if len(ranks) > most {
		ranks, more = ranks[:most], fmt.Sprintf(" and %d more", len(ranks)-most)
	}
	return fmt.Sprintf("of %d ranks, ranks %v%s did not come: %v", e.Size, ranks, more, e.Err)
}

// Unwrap gives what ended the wait.
func (e *AbsentError) Unwrap() error { return e.Err }

// Connect finds the store of a world and returns once all ranks have called it, or with the
// context's error (DefaultTimeout if it has no deadline); an AbsentError names the ranks that
// did not come. All ranks must call it equally often, and one call after the other; they may be
// connected several times at once. A call that ends before it reaches the store does not count:
// after an error the ranks leave, and begin anew.
//
// Keys of the Client are apart from those of other jobs, of earlier attempts of this job (as far
// as the launcher counts them), and of other calls of Connect.
//
// The Member is this rank's part in that. It must be closed, which leaves the job.
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

// maxHangUps is how often a rank tries again where a store hangs up at once. One of an earlier
// attempt that is about to close does so; and one that wants a token, each time.
const maxHangUps = 3

// connect tries again when the store is lost: it may have been one that rank 0 was about to
// close, after an earlier Connect on the same address.
func connect(ctx context.Context, w World) (*Member, error) {
	if w.Route.Kind == RoutePMI {
		to, err := pmiEndpoint(ctx, w.Route.FD, w.Rank == 0)
		if err != nil {
			return nil, err
		}
		w.Route = Route{Kind: RouteServe, Endpoint: to}
	}
	hangUps := 0
	once := func(ctx context.Context) (*Member, error) { return attempt(ctx, w) }
	return retryUntil(ctx, once, func(err error) bool {
		if errors.Is(err, errHungUp) {
			hangUps++
		}
		return errors.Is(err, ErrLost) || errors.Is(err, errHungUp) && hangUps <= maxHangUps
	})
}

// attempt connects once.
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

// open connects to the store, and serves it where that is this rank's part.
func (m *Member) open(ctx context.Context) (err error) {
	route := m.world.Route
	switch {
	case route.Kind == RouteLocal:
		m.client = NewLocal()
		return nil
	case route.Kind == RouteServe && m.world.Rank == 0:
		if m.service, err = serve(ctx, route.Endpoint, &m.world); err == nil {
			m.client = m.service.server.Client()
		}
		return err
	}
	if route.Kind == RouteServe {
		defer m.warnLate(ctx, func(context.Context) []int { return []int{0} })()
	}
	m.client, err = Dial(ctx, route.Endpoint)
	if err != nil && ctx.Err() != nil && route.Kind == RouteServe {
		return &AbsentError{Ranks: []int{0}, Size: m.world.Size, Err: err}
	}
	if m.client != nil && route.Kind == RouteServe {
		m.client.server = 1
	}
	return err
}

// listenAddress returns the address to listen on for clients of a TCP address. The name that others
// use for this machine need not resolve to one of its interfaces (in Kubernetes it does not), so
// unless it is the loopback the server listens on all interfaces. The token keeps others out.
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

// closeTimeout is how long Close of rank 0 serves on for ranks that have not left.
const closeTimeout = 30 * time.Second

// leaveTimeout is how long a rank tries to store that it leaves.
const leaveTimeout = 2 * time.Second

// ranksIn parses what rank 0 left: the absent ranks, with commas.
func ranksIn(list string) (ranks []int) {
	for word := range strings.SplitSeq(list, ",") {
		if rank, err := strconv.Atoi(word); err == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}
