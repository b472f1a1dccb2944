package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

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
		defer warnLate(ctx, m.world.Late, func(context.Context) []int { return []int{0} })()
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

// joinAll joins the world and waits for the other ranks. If ctx is done first, the error lists the
// absent ranks. Rank 0 also publishes the result.
func (m *Member) joinAll(ctx context.Context) error {
	err := m.join(ctx)
	if err == nil {
		err = m.awaitRanks(ctx)
	}
	if err != nil && ctx.Err() != nil && m.store != nil && !errors.As(err, new(*EndedError)) {
		if absent := m.absent(ctx); len(absent) > 0 {
			err = &AbsentError{
				Ranks: absent, Size: m.world.Size,
				Err: fmt.Errorf("%w%s%s", context.Cause(ctx), m.arrivedMachines(ctx),
					m.world.sizeMismatch(ctx, m.client, absent)),
			}
		}
	}
	var missing *AbsentError
	if m.world.Rank != 0 || err != nil && !errors.As(err, &missing) {
		return err
	}
	var absent []int
	if missing != nil {
		absent = missing.Ranks
	}
	return errors.Join(err, m.publishReady(ctx, absent))
}

func (m *Member) awaitRanks(ctx context.Context) (err error) {
	watched, stop := m.guard(ctx, launcherDelay, m.fatalToConnect)
	defer stop()
	defer warnLate(ctx, m.world.Late, m.absent)()
	if m.world.Rank == 0 {
		err = m.store.Wait(watched, m.otherKeys(joinedKey)...)
	} else {
		err = m.awaitReady(watched)
	}
	if err == nil {
		return nil
	}
	if ended := m.ended(watched); ended != nil {
		return ended
	}
	return m.explainWaitError(err)
}

// join determines the keys of this call and announces this rank. A request in progress may continue
// for leaveTimeout after the deadline. Aborting it would close the connection, and this rank could
// no longer find out which ranks are absent.
func (m *Member) join(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := extend(ctx, leaveTimeout)
	defer cancel()
	base := m.world.job()
	var watchClient *Client
	if m.world.Size > 1 {
		var err error
		if watchClient, err = m.world.claim(ctx, m.client); err != nil {
			return err
		}
	}
	// All ranks make the same number of calls, so they get the same count.
	call, err := m.client.Add(ctx, fmt.Sprintf("%s/turn/%d", base, m.world.Rank), 1)
	if err != nil {
		if watchClient != nil {
			err = errors.Join(err, watchClient.Close())
		}
		return err
	}
	m.base = fmt.Sprintf("%s/%d", base, call)
	m.store = WithPrefix(m.client, m.base)
	if watchClient != nil {
		if m.watch, err = startWatch(ctx, m, watchClient); err != nil {
			return err
		}
		size := strconv.Itoa(m.world.Size)
		if err := m.client.Set(ctx, m.world.sizeKey(m.world.Rank), []byte(size)); err != nil {
			return err
		}
	}
	return m.store.Set(ctx, joinedKey(m.world.Rank), []byte(hostName()))
}

func (m *Member) otherKeys(key func(rank int) string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, key(rank))
	}
	return keys
}

// publishReady stores the list of absent ranks. It may take up to leaveTimeout after the deadline.
func (m *Member) publishReady(ctx context.Context, absent []int) error {
	texts := make([]string, len(absent))
	for i, rank := range absent {
		texts[i] = strconv.Itoa(rank)
	}
	ctx, cancel := extend(ctx, leaveTimeout)
	defer cancel()
	return m.store.Set(ctx, readyKey, []byte(strings.Join(texts, ",")))
}

// awaitReady waits until rank 0 publishes the list of absent ranks. It returns an error unless the
// list is empty.
func (m *Member) awaitReady(ctx context.Context) error {
	if err := m.store.Wait(ctx, readyKey); err != nil {
		return err
	}
	// The key is set, so its value can be read even after the deadline.
	readCtx, cancel := extend(ctx, leaveTimeout)
	defer cancel()
	value, err := m.store.Get(readCtx, readyKey)
	if err != nil || len(value) == 0 {
		return err
	}
	return &AbsentError{
		Ranks: parseRanks(string(value)), Size: m.world.Size,
		Err: fmt.Errorf("rank 0 gave up waiting%s", m.arrivedMachines(ctx)),
	}
}

// absent lists the other ranks that have not joined. It works even after the deadline of ctx.
func (m *Member) absent(ctx context.Context) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
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

// arrivedMachines returns a suffix for an error about absent ranks: the ranks that have joined, by
// machine. It returns "" if the world has only one machine. It works even after the deadline.
func (m *Member) arrivedMachines(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	var names []string
	ranks := map[string][]int{}
	for rank := range m.world.Size {
		value, joined, err := m.store.Peek(ctx, joinedKey(rank))
		name := string(value)
		if err != nil || !joined || name == "" {
			continue
		}
		if ranks[name] == nil {
			names = append(names, name)
		}
		ranks[name] = append(ranks[name], rank)
	}
	if len(names) == 0 || len(names) == 1 && m.world.LocalSize == m.world.Size {
		return ""
	}
	text := "; arrived:"
	for i, name := range names[:min(len(names), maxMachines)] {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" ranks %v on %.64q", ranks[name], name)
	}
	return text
}
