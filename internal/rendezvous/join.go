package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// openStore sets m.client to a client of the store that m.world.Route selects. With RouteServe,
// rank 0 serves the store and also sets m.service, and the other ranks wait for it.
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
		m.client.serverRankPlus1 = 1 // rank 0 serves the store
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
	isTimeout := err != nil && ctx.Err() != nil && !errors.As(err, new(*EndedError))
	if isTimeout && m.store != nil {
		if absent := m.findAbsent(ctx); len(absent) > 0 {
			err = &AbsentError{
				Ranks: absent, Size: m.world.Size,
				Err: fmt.Errorf("%w%s%s", context.Cause(ctx), m.describeJoinedRanks(ctx),
					m.world.describeSizeMismatch(ctx, m.client, absent)),
			}
		}
	}
	var absentErr *AbsentError
	hasAbsent := errors.As(err, &absentErr)
	canPublish := err == nil || hasAbsent
	if m.world.Rank != 0 || !canPublish {
		return err
	}
	var absent []int
	if hasAbsent {
		absent = absentErr.Ranks
	}
	return errors.Join(err, m.publishReady(ctx, absent))
}

// awaitRanks waits until all ranks have joined. Rank 0 waits for the others, which wait for rank 0
// to publish the result. It returns early if a rank that has not left has ended.
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
	// Each rank counts its calls of Connect. The count is the same on all ranks, and so is the
	// prefix.
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
		m.watcher, err = startEndWatcher(ctx, m, watchClient)
		if err != nil {
			return err
		}
		size := strconv.Itoa(m.world.Size)
		if err := m.client.Set(ctx, m.world.sizeKey(m.world.Rank), []byte(size)); err != nil {
			return err
		}
	}
	return m.store.Set(ctx, joinedKey(m.world.Rank), []byte(hostName()))
}

// otherRanksKeys returns the keys of all ranks except 0, which calls it.
func (m *Member) otherRanksKeys(key func(rank int) string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, key(rank))
	}
	return keys
}

// publishReady stores the list of absent ranks, which is empty if all have joined, under readyKey.
func (m *Member) publishReady(ctx context.Context, absent []int) error {
	numbers := make([]string, len(absent))
	for i, rank := range absent {
		numbers[i] = strconv.Itoa(rank)
	}
	ctx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	return m.store.Set(ctx, readyKey, []byte(strings.Join(numbers, ",")))
}

// awaitReady waits for the list of absent ranks from rank 0. It returns an error unless the list
// is empty.
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

// findAbsent lists the other ranks that have not joined. It ignores the end of ctx, because it
// serves to explain a timeout.
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

// parseRanks parses a list from publishReady. It ignores elements that are not numbers.
func parseRanks(list string) (ranks []int) {
	for text := range strings.SplitSeq(list, ",") {
		if rank, err := strconv.Atoi(text); err == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// maxMachines is the number of machines that describeJoinedRanks lists.
const maxMachines = 16

// describeJoinedRanks returns the end of an error message that lists the joined ranks on each
// machine, or "" if all ranks are on one machine. It ignores the end of ctx, like findAbsent.
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
