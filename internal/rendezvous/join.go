package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// openStore connects to the store. Rank 0 serves it if the route requires that.
func (m *Member) openStore(ctx context.Context) (err error) {
	route := m.world.Route
	switch {
	case route.Kind == RouteLocal:
		m.client = NewLocal()
		return nil
	case route.Kind == RouteServe && m.world.Rank == 0:
		if m.service, err = joinService(ctx, route.Endpoint, &m.world); err == nil {
			m.client = m.service.server.Client()
		}
		return err
	}
	if route.Kind == RouteServe {
		findAbsent := func(context.Context) []int { return []int{0} }
		defer reportLateRanks(ctx, m.world.ReportAbsent, findAbsent)()
	}
	m.client, err = Dial(ctx, route.Endpoint)
	if err != nil && ctx.Err() != nil && route.Kind == RouteServe {
		return &AbsentError{Ranks: []int{0}, Size: m.world.Size, Err: err}
	}
	if m.client != nil && route.Kind == RouteServe {
		m.client.serverRankPlus1 = 1
	}
	return err
}

// joinAndAwait joins the world and waits for the other ranks. Its error lists the absent ranks.
// Rank 0 publishes them to the other ranks.
func (m *Member) joinAndAwait(ctx context.Context) error {
	err := m.join(ctx)
	if err == nil {
		err = m.awaitRanks(ctx)
	}
	if err != nil {
		err = m.explainError(err)
	}
	if err != nil && ctx.Err() != nil && m.store != nil && !errors.As(err, new(*EndedError)) {
		if absent := m.findAbsent(ctx); len(absent) > 0 {
			err = &AbsentError{
				Ranks: absent, Size: m.world.Size,
				Err: fmt.Errorf("%w%s%s", context.Cause(ctx), m.describeJoinedRanks(ctx),
					m.world.describeSizeMismatch(ctx, m.client, absent)),
			}
		}
	}
	var absentErr *AbsentError
	if m.world.Rank != 0 || err != nil && !errors.As(err, &absentErr) {
		return err
	}
	var absent []int
	if absentErr != nil {
		absent = absentErr.Ranks
	}
	return errors.Join(err, m.publishReady(ctx, absent))
}

func (m *Member) awaitRanks(ctx context.Context) (err error) {
	guardedCtx, stop := m.guard(ctx, launcherDelay, m.isFatalToConnect)
	defer stop()
	defer reportLateRanks(ctx, m.world.ReportAbsent, m.findAbsent)()
	if m.world.Rank == 0 {
		err = m.store.Wait(guardedCtx, m.otherRanksKeys(joinedKey)...)
	} else {
		err = m.awaitReady(guardedCtx)
	}
	if err == nil {
		return nil
	}
	if ended := m.endedError(guardedCtx); ended != nil {
		return ended
	}
	return err
}

// join determines the key prefix of this call and announces this rank. Aborting a request would
// close the connection, which this rank needs to find absent ranks. A request may therefore
// continue for lateRequestTimeout after the deadline.
func (m *Member) join(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	jobPrefix := m.world.jobPrefix()
	var watchClient *Client
	if m.world.Size > 1 {
		var err error
		if watchClient, err = m.world.claimRank(ctx, m.client); err != nil {
			return err
		}
	}
	// All ranks make the same number of calls, so they get the same result.
	call, err := m.client.Add(ctx, fmt.Sprintf("%s/turn/%d", jobPrefix, m.world.Rank), 1)
	if err != nil {
		if watchClient != nil {
			err = errors.Join(err, watchClient.Close())
		}
		return err
	}
	m.keyPrefix = fmt.Sprintf("%s/%d", jobPrefix, call)
	m.store = WithPrefix(m.client, m.keyPrefix)
	if watchClient != nil {
		if m.watcher, err = startEndWatcher(ctx, m, watchClient); err != nil {
			return err
		}
		size := strconv.Itoa(m.world.Size)
		if err := m.client.Set(ctx, m.world.sizeKey(m.world.Rank), []byte(size)); err != nil {
			return err
		}
	}
	return m.store.Set(ctx, joinedKey(m.world.Rank), []byte(hostName()))
}

func (m *Member) otherRanksKeys(key func(rank int) string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, key(rank))
	}
	return keys
}

// publishReady stores the list of absent ranks under readyKey.
func (m *Member) publishReady(ctx context.Context, absent []int) error {
	numbers := make([]string, len(absent))
	for i, rank := range absent {
		numbers[i] = strconv.Itoa(rank)
	}
	ctx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	return m.store.Set(ctx, readyKey, []byte(strings.Join(numbers, ",")))
}

// awaitReady waits for the list of absent ranks from rank 0. It returns an error unless the list is
// empty.
func (m *Member) awaitReady(ctx context.Context) error {
	if err := m.store.Wait(ctx, readyKey); err != nil {
		return err
	}
	// The key is set, so Get returns soon. The deadline must not interrupt it.
	readCtx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	value, err := m.store.Get(readCtx, readyKey)
	if err != nil || len(value) == 0 {
		return err
	}
	return &AbsentError{
		Ranks: parseRanks(string(value)), Size: m.world.Size,
		Err: fmt.Errorf("rank 0 gave up waiting%s", m.describeJoinedRanks(ctx)),
	}
}

// findAbsent lists the other ranks that have not joined. ctx may have expired.
func (m *Member) findAbsent(ctx context.Context) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	for rank := range m.world.Size {
		if rank == m.world.Rank {
			continue
		}
		if _, joined, err := m.store.Peek(ctx, joinedKey(rank)); err == nil && !joined {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

func parseRanks(list string) (ranks []int) {
	for text := range strings.SplitSeq(list, ",") {
		if rank, err := strconv.Atoi(text); err == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

const maxMachines = 16

// describeJoinedRanks returns the end of an error message with the joined ranks on each machine.
// ctx may have expired.
func (m *Member) describeJoinedRanks(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	var machines []string
	ranks := map[string][]int{} // by machine
	for rank := range m.world.Size {
		value, hasJoined, err := m.store.Peek(ctx, joinedKey(rank))
		machine := string(value)
		if err != nil || !hasJoined || machine == "" {
			continue
		}
		if ranks[machine] == nil {
			machines = append(machines, machine)
		}
		ranks[machine] = append(ranks[machine], rank)
	}
	if len(machines) == 0 || len(machines) == 1 && m.world.LocalSize == m.world.Size {
		return ""
	}
	text := "; arrived:"
	for i, machine := range machines[:min(len(machines), maxMachines)] {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" ranks %v on %.64q", ranks[machine], machine)
	}
	return text
}
