package symmem

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// registry lists the open groups and pools of a Runtime. Once Runtime.Close has begun, calls in
// progress can still add pools, and nothing is removed.
type registry struct {
	mu             *ranked.Mutex[runtimeMu]
	life           context.Context // canceled with ErrClosed when Runtime.Close begins
	cancel         context.CancelCauseFunc
	creations      sync.WaitGroup      // calls in progress; Add is called with mu held
	world          *Group              // the group of all ranks
	groups         []*Group            // includes failed groups; guarded by mu
	pools          []*Pool             // guarded by mu
	joinedIDs      map[string]struct{} // includes ids of failed Joins; guarded by mu
	ranges         poolRanges          // addresses of the pools; changed with mu held
	localPoolCount uint64              // pools created without a domain; guarded by mu
}

func newRegistry(mu *ranked.Mutex[runtimeMu]) registry {
	life, cancel := context.WithCancelCause(context.Background())
	return registry{mu: mu, life: life, cancel: cancel}
}

// closedError returns ErrClosed if Runtime.Close has begun, and otherwise nil.
func (r *registry) closedError() error { return context.Cause(r.life) }

// beginCreation begins a call that creates a group, pool or stream. After success, the caller must
// call endCreation.
func (r *registry) beginCreation() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.closedError(); err != nil {
		return err
	}

	r.creations.Add(1)
	return nil
}

func (r *registry) endCreation() { r.creations.Done() }

// beginJoin begins a call that waits for other ranks. Runtime.Close cancels joinCtx. After success,
// the caller must pass the call's error or nil to end, and return the result.
func (r *registry) beginJoin(
	ctx context.Context,
) (joinCtx context.Context, end func(joinErr error) error, err error) {
	if err := r.beginCreation(); err != nil {
		return nil, nil, err
	}

	joinCtx, cancel := context.WithCancelCause(ctx)
	stopWatching := context.AfterFunc(r.life, func() { cancel(r.closedError()) })
	end = func(joinErr error) error {
		defer r.endCreation()
		stopWatching()
		cancel(nil) // releases joinCtx
		if joinErr == nil {
			return nil
		}

		return cmp.Or(r.closedError(), joinErr) // Close may have caused joinErr
	}
	return joinCtx, end, nil
}

// close makes new calls fail. It reports whether this is the first close.
func (r *registry) close() (isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isFirst = r.life.Err() == nil
	r.cancel(fmt.Errorf("runtime: %w", ErrClosed))
	return isFirst
}

// awaitCreations waits until the deadline for the calls in progress.
func (r *registry) awaitCreations(deadline time.Time) {
	done := make(chan struct{})
	go func() {
		r.creations.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Until(deadline)):
	}
}

func (r *registry) allPools() []*Pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pools)
}

func (r *registry) allGroups() []*Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.groups)
}

// addGroup adds a group and starts its goroutines, or returns an error if Runtime.Close has begun.
func (r *registry) addGroup(g *Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.closedError(); err != nil {
		return err
	}

	g.life.background.Go(g.life.watch)
	g.comparison.startInBackground()
	r.groups = append(r.groups, g)
	return nil
}

// removeGroup removes a closed group. Failed groups must stay, because realignments of pools need
// the faults.
func (r *registry) removeGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closedError() != nil {
		return
	}

	if i := slices.Index(r.groups, g); i >= 0 {
		r.groups = slices.Delete(r.groups, i, i+1)
	}
}

// claimID records the id of a Join. It returns false if an earlier Join has used the id.
func (r *registry) claimID(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, isUsed := r.joinedIDs[id]; isUsed {
		return false
	}

	if r.joinedIDs == nil {
		r.joinedIDs = map[string]struct{}{}
	}

	r.joinedIDs[id] = struct{}{}
	return true
}

// addPool adds a pool and sets its id and number. The caller has called beginCreation.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isLocal := p.domain == nil // no group shares the pool
	if isLocal {
		const noID = 0
		p.identify(noID, r.localPoolCount)
		r.localPoolCount++
	} else {
		id := r.nextPoolID(p.domain)
		p.identify(id, id)
	}

	r.pools = append(r.pools, p)
	r.ranges.set(p, p.segments.arenaBytes)
}

// removePool removes a closed pool.
func (r *registry) removePool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closedError() != nil {
		return
	}

	if i := slices.Index(r.pools, p); i >= 0 {
		r.pools = slices.Delete(r.pools, i, i+1)
	}
}

// setUsedAddresses shortens the address range of a closed pool to bytes. 0 removes it.
func (r *registry) setUsedAddresses(p *Pool, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges.set(p, bytes)
}

// countPools returns the number of pools of a domain or, if domain is nil, of local pools.
func (r *registry) countPools(domain *Group) int {
	count := 0
	for _, p := range r.allPools() {
		if p.domain == domain {
			count++
		}
	}

	return count
}

// The id of a shared pool is the same on all ranks. The lower 16 bits number the pools of one
// domain. The upper 48 bits come from Group.key, a hash, or are 0 for the world.
const poolsPerDomain = 1 << 16

func keyBits(idOrKey uint64) uint64 { return idOrKey &^ (poolsPerDomain - 1) }

// nextPoolID must be called with mu held.
func (r *registry) nextPoolID(domain *Group) uint64 {
	number := domain.poolCount
	domain.poolCount++
	if domain == r.world {
		return number
	}

	return keyBits(domain.key) | number%poolsPerDomain
}

// poolName returns the name of a shared pool for messages. If this rank does not know the pool or
// the domain, the name contains only the id.
func (r *registry) poolName(id uint64) string {
	numberInDomain := id % poolsPerDomain
	isPoolOfWorld := keyBits(id) == 0
	if isPoolOfWorld {
		return fmt.Sprintf("pool %d", id)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		if p.id == id && p.domain != nil {
			return fmt.Sprintf("pool %d of group %s", numberInDomain, p.domain.id)
		}
	}

	for _, g := range r.groups {
		if keyBits(g.key) == keyBits(id) {
			return fmt.Sprintf("pool %d of group %s", numberInDomain, g.id)
		}
	}

	return fmt.Sprintf("pool %#x", id)
}
