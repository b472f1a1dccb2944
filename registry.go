package symmem

import (
	"context"
	"fmt"
	"slices"

	"symmem/internal/ranked"
)

// The groups and pools of a Runtime are in its registry, from their creation until they are closed.
// A group that has failed stays in the registry.
//
// The ranks of a group can share a pool: the group is the pool's domain. They name the pool by an
// id, which is the same on all ranks. If the world, the group of all ranks, shares two pools, their
// ids are 0 and 1. The ids of another group's first two pools also end in 0 and 1. They begin with
// bits of the group's key, which is a hash. Pools without a domain exist on one rank only. They all
// have the id 0, but different numbers.

// registry lists the groups and pools of a Runtime.
type registry struct {
	mu *ranked.Mutex[runtimeMu]
	// context is canceled when Runtime.Close begins. From then on, groups and pools are neither added
	// nor removed.
	context        context.Context
	world          *Group              // the group of all ranks
	groups         []*Group            // guarded by mu
	pools          []*Pool             // guarded by mu
	joinedIDs      map[string]struct{} // ids of all Joins, even failed ones; guarded by mu
	ranges         poolRanges          // addresses of the pools, for lookups
	localPoolCount uint64              // pools created without a domain; guarded by mu
}

// allPools returns a copy of the list of pools.
func (r *registry) allPools() []*Pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pools)
}

// allGroups returns a copy of the list of groups.
func (r *registry) allGroups() []*Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.groups)
}

// addGroup adds a group and starts its goroutines. If Runtime.Close has begun, it returns an error
// instead.
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

// removeGroup removes a closed group, unless Runtime.Close has begun. Do not call it for a group
// that has failed: a realignment of pools needs the faults of failed groups.
func (r *registry) removeGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.groups, g); i >= 0 && r.context.Err() == nil {
		r.groups = slices.Delete(slices.Clone(r.groups), i, i+1)
	}
}

// claimID marks an id as used by Join. It returns false if a Join has used the id before.
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

// addPool adds a new pool, and gives it an id and a number.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.domain == nil {
		const localID = 0
		p.identify(localID, r.localPoolCount)
		r.localPoolCount++
	} else {
		id := r.nextPoolID(p.domain)
		p.identify(id, id) // the id is also the number
	}

	r.pools = append(r.pools, p)
	r.ranges.set(p, p.segments.arenaBytes)
}

// removePool removes a closed pool, unless Runtime.Close has begun.
func (r *registry) removePool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.pools, p); i >= 0 && r.context.Err() == nil {
		r.pools = slices.Delete(slices.Clone(r.pools), i, i+1)
	}
}

// setUsedAddresses shortens the address range of a closed pool to its first bytes, which are still
// in use, or removes the range if bytes is 0.
func (r *registry) setUsedAddresses(p *Pool, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges.set(p, bytes)
}

// countPools returns the number of pools that have the domain. domain may be nil.
func (r *registry) countPools(domain *Group) int {
	count := 0
	for _, p := range r.allPools() {
		if p.domain == domain {
			count++
		}
	}

	return count
}

// poolsPerDomain is the number of distinct ids for the pools of one domain. It is a power of two,
// so that the low 16 bits of an id number the domain's pools. The other bits are those of the
// domain's key.
const poolsPerDomain = 1 << 16

// keyBits returns the bits of a pool's id or of a group's key that identify the domain.
func keyBits(idOrKey uint64) uint64 { return idOrKey &^ (poolsPerDomain - 1) }

// nextPoolID returns the id of a domain's next pool. The caller must hold mu.
func (r *registry) nextPoolID(domain *Group) uint64 {
	number := domain.poolCount
	domain.poolCount++
	if domain == r.world {
		return number
	}

	return keyBits(domain.key) | number%poolsPerDomain
}

// poolName returns the name of the pool with an id, for messages. If this rank has neither the
// pool nor its domain, the name contains only the id.
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
