package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// openStore sets m.jobClient to a client of the store that m.world.Route selects. With RouteServe,
// rank 0 also serves the store.
func (m *Member) openStore(ctx context.Context) (err error) {
	route := m.world.Route
	switch {
	case route.Kind == RouteLocal:
		m.jobClient = NewLocal()
		return nil
	case route.Kind == RouteServe && m.world.Rank == 0:
		m.service, err = joinService(ctx, route.Endpoint, &m.world)
		if err == nil {
			m.jobClient = m.service.server.Client()
		}

		return err
	case route.Kind == RouteServe:
		return m.dialRankZero(ctx)
	}

	m.jobClient, err = Dial(ctx, route.Endpoint)
	return err
}

// dialRankZero sets m.jobClient to a client of the store that rank 0 serves. It waits until rank 0
// does so. At the end of ctx, it returns an AbsentError about rank 0.
func (m *Member) dialRankZero(ctx context.Context) error {
	findAbsent := func(context.Context) []int { return []int{0} }
	stopReports := reportRanks(ctx, m.world.ReportAbsent, findAbsent)
	defer stopReports()
	client, err := Dial(ctx, m.world.Route.Endpoint)
	if err != nil && ctx.Err() != nil {
		return &AbsentError{Ranks: []int{0}, Size: m.world.Size, Err: err}
	}

	if err != nil {
		return err
	}

	client.serverRank = 0
	m.jobClient = client
	return nil
}

// joinAndAwait joins the world, which is the set of ranks that connect together, and waits for the
// other ranks. After a timeout, it returns an AbsentError with the ranks that have not joined. On
// rank 0, it also publishes the list of absent ranks, even if the list is empty.
func (m *Member) joinAndAwait(ctx context.Context) error {
	err := m.join(ctx)
	if err == nil {
		err = m.awaitRanks(ctx)
	}

	if err != nil {
		err = m.explainError(err) // names a rank whose end has caused err
		err = m.explainTimeout(ctx, err)
	}

	if m.world.Rank != 0 {
		return err
	}

	var absentErr *AbsentError
	if err != nil && !errors.As(err, &absentErr) {
		return err // The absent ranks are not known.
	}

	var absent []int
	if absentErr != nil {
		absent = absentErr.Ranks
	}

	// m.worldClient is not nil: there is no AbsentError before join has set it.
	publishErr := m.publishReady(ctx, absent)
	return errors.Join(err, publishErr)
}

// explainTimeout returns an AbsentError with the ranks that have not joined, if err is due to the
// end of ctx. It returns err unchanged if another rank's end has caused it, or if no rank is known
// to be absent.
func (m *Member) explainTimeout(ctx context.Context, err error) error {
	isTimeout := ctx.Err() != nil && !errors.As(err, new(*EndedError))
	if !isTimeout || m.worldClient == nil {
		return err
	}

	absent := m.findAbsent(ctx)
	if len(absent) == 0 {
		return err
	}

	// Each of these two texts begins with "; " or is empty.
	joined := m.describeJoinedRanks(ctx)
	mismatch := m.world.describeSizeMismatch(ctx, m.jobClient, absent)
	reason := fmt.Errorf("%w%s%s", context.Cause(ctx), joined, mismatch)
	return &AbsentError{Ranks: absent, Size: m.world.Size, Err: reason}
}

// awaitRanks waits until all ranks have joined. Rank 0 waits for the other ranks. The others wait
// until rank 0 publishes that all have joined. If a rank ends without leaving first, awaitRanks
// returns an error at once.
func (m *Member) awaitRanks(ctx context.Context) (err error) {
	// guardedCtx is also canceled when a rank ends without leaving.
	guardedCtx, stopGuard := m.guard(ctx, launcherDelay, m.isFatalToConnect)
	defer stopGuard()
	stopReports := reportRanks(ctx, m.world.ReportAbsent, m.findAbsent)
	defer stopReports()
	if m.world.Rank == 0 {
		err = m.worldClient.Wait(guardedCtx, m.otherRanksKeys(joinedKey)...)
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

// join determines the key prefix of this world and announces this rank.
//
// A request may continue for lateRequestTimeout after the deadline of ctx. Aborting it would close
// the connection, which this rank still needs to find absent ranks.
func (m *Member) join(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	ctx, cancel := extend(ctx, lateRequestTimeout) // moves the deadline
	defer cancel()
	jobPrefix := m.world.jobPrefix()
	var watchClient *Client // nil if this rank is the only one
	if m.world.Size > 1 {
		var err error
		watchClient, err = m.world.claimRank(ctx, m.jobClient)
		if err != nil {
			return err
		}
	}

	// Each rank counts its calls of Connect. The n-th calls of all ranks belong together and have
	// the same prefix.
	countKey := fmt.Sprintf("%s/turn/%d", jobPrefix, m.world.Rank)
	callNumber, err := m.jobClient.Add(ctx, countKey, 1)
	if err != nil {
		if watchClient != nil {
			closeErr := watchClient.Close()
			err = errors.Join(err, closeErr)
		}

		return err
	}

	m.keyPrefix = fmt.Sprintf("%s/%d", jobPrefix, callNumber)
	m.worldClient = WithPrefix(m.jobClient, m.keyPrefix)
	if watchClient != nil {
		m.watcher, err = startEndWatcher(ctx, m, watchClient) // owns watchClient from here on
		if err != nil {
			return err
		}

		size := []byte(strconv.Itoa(m.world.Size))
		err = m.jobClient.Set(ctx, m.world.sizeKey(m.world.Rank), size)
		if err != nil {
			return err
		}
	}

	return m.worldClient.Set(ctx, joinedKey(m.world.Rank), []byte(hostName()))
}

// otherRanksKeys returns a key for each rank except 0. Only rank 0 calls it.
func (m *Member) otherRanksKeys(key func(rank int) string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, key(rank))
	}

	return keys
}

// publishReady stores the list of absent ranks under readyKey, such as "1,3". The empty list means
// that all ranks have joined.
func (m *Member) publishReady(ctx context.Context, absent []int) error {
	numbers := make([]string, len(absent))
	for i, rank := range absent {
		numbers[i] = strconv.Itoa(rank)
	}

	ctx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	return m.worldClient.Set(ctx, readyKey, []byte(strings.Join(numbers, ",")))
}

// awaitReady waits for the list of absent ranks from rank 0. It returns an AbsentError if the list
// is not empty.
func (m *Member) awaitReady(ctx context.Context) error {
	if err := m.worldClient.Wait(ctx, readyKey); err != nil {
		return err
	}

	// The key is set, so Get returns soon. The deadline must not interrupt it.
	readCtx, cancel := extend(ctx, lateRequestTimeout)
	defer cancel()
	value, err := m.worldClient.Get(readCtx, readyKey)
	if err != nil {
		return err
	}

	if len(value) == 0 {
		return nil // All ranks have joined.
	}

	absent := parseRanks(string(value))
	reason := fmt.Errorf("rank 0 gave up waiting%s", m.describeJoinedRanks(ctx))
	return &AbsentError{Ranks: absent, Size: m.world.Size, Err: reason}
}

// findAbsent lists the other ranks that are known not to have joined. It also works after the end
// of ctx, because it serves to explain a timeout.
func (m *Member) findAbsent(ctx context.Context) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	for rank := range m.world.Size {
		if rank == m.world.Rank {
			continue
		}

		_, hasJoined, err := m.worldClient.Peek(ctx, joinedKey(rank))
		if err == nil && !hasJoined {
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

// maxMachines is the number of machines that describeJoinedRanks lists. It keeps the error message
// readable.
const maxMachines = 16

// describeJoinedRanks returns the end of an error message that lists the joined ranks on each
// machine, such as `; arrived: ranks [0 1] on "host"`. It returns "" if all ranks are on one
// machine. It also works after the end of ctx.
func (m *Member) describeJoinedRanks(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	var machines []string // in the order of their lowest ranks
	ranks := map[string][]int{}
	for rank := range m.world.Size {
		// The value of joinedKey is the name of the rank's machine, or "" if it is unknown.
		value, hasJoined, err := m.worldClient.Peek(ctx, joinedKey(rank))
		machine := string(value)
		if err != nil || !hasJoined || machine == "" {
			continue
		}

		if ranks[machine] == nil {
			machines = append(machines, machine)
		}

		ranks[machine] = append(ranks[machine], rank)
	}

	isOneMachine := m.world.LocalSize == m.world.Size
	if len(machines) == 0 || (len(machines) == 1 && isOneMachine) {
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
