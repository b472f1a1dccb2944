package symmem

import (
	"context"
	"fmt"
	"slices"

	"symmem/internal/ranked"
)

// registry lists the groups and pools of a Runtime that have not been closed.
type registry struct {
	mu *ranked.Mutex[runtimeMu]
	// context is canceled when Runtime.Close begins. From then on, groups and pools do not change.
	context        context.Context
	world          *Group              // the group of all ranks
	groups         []*Group            // includes failed groups; guarded by mu
	pools          []*Pool             // guarded by mu
	joinedIDs      map[string]struct{} // a set, includes ids of failed Joins; guarded by mu
	ranges         poolRanges          // addresses of the pools, for lookups
	localPoolCount uint64              // pools created without a domain; guarded by mu
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
	if err := context.Cause(r.context); err != nil {
		return err
	}

	g.life.background.Go(g.life.watch)
	g.comparison.startInBackground()
	r.groups = append(r.groups, g)
	return nil
}

// removeGroup removes a closed group, unless Runtime.Close has begun. Callers must not remove
// failed groups, because realignments of pools need their faults.
func (r *registry) removeGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.context.Err() != nil {
		return
	}

	if i := slices.Index(r.groups, g); i >= 0 {
		r.groups = slices.Delete(r.groups, i, i+1)
	}
}

// claimID records the id of a Join. It returns false if another Join has used the id.
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

// addPool adds a pool. The domain of a shared pool is the group that shares it.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isLocal := p.domain == nil
	if isLocal {
		const noID = 0
		number := r.localPoolCount
		r.localPoolCount++
		p.identify(noID, number)
	} else {
		id := r.nextPoolID(p.domain)
		number := id
		p.identify(id, number)
	}

	r.pools = append(r.pools, p)
	r.ranges.set(p, p.segments.arenaBytes)
}

// removePool removes a closed pool, unless Runtime.Close has begun.
func (r *registry) removePool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.context.Err() != nil {
		return
	}

	if i := slices.Index(r.pools, p); i >= 0 {
		r.pools = slices.Delete(r.pools, i, i+1)
	}
}

// setUsedAddresses shortens the address range of a closed pool, or removes it if bytes is 0.
func (r *registry) setUsedAddresses(p *Pool, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges.set(p, bytes)
}

// countPools returns the number of pools that a group shares or, if domain is nil, of local pools.
func (r *registry) countPools(domain *Group) int {
	count := 0
	for _, p := range r.allPools() {
		if p.domain == domain {
			count++
		}
	}

	return count
}

// The id of a shared pool is the same on all ranks of its domain. The upper 48 bits are those of
// the domain's key, which is a hash, or 0 for the world. The lower 16 bits number the pools of the
// domain.
const poolsPerDomain = 1 << 16

func keyBits(idOrKey uint64) uint64 { return idOrKey - idOrKey%poolsPerDomain }

// nextPoolID must be called with mu held.
func (r *registry) nextPoolID(domain *Group) uint64 {
	number := domain.poolCount
	domain.poolCount++
	if domain == r.world {
		return number
	}

	return keyBits(domain.key) | number%poolsPerDomain
}

// poolName returns the name of a shared pool for messages. If the pool and its domain are unknown
// on this rank, the name contains only the id.
func (r *registry) poolName(id uint64) string {
	numberInDomain := id % poolsPerDomain
	isPoolOfWorld := id == numberInDomain
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
