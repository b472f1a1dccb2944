package symmem

import (
	"context"
	"fmt"
	"slices"

	"symmem/internal/ranked"
)

// registry lists the groups and pools of a Runtime.
type registry struct {
	mu *ranked.Mutex[runtimeMu]
	// context is canceled when Runtime.Close begins. From then on, the lists do not change.
	context    context.Context
	world      *Group              // the group of all ranks
	groups     []*Group            // guarded by mu
	pools      []*Pool             // guarded by mu
	joinedIDs  map[string]struct{} // ids of all Joins, even failed ones; guarded by mu
	ranges     poolRanges          // addresses of the pools, for lookups
	localPools uint64              // number of pools created without a domain; guarded by mu
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

// removeGroup removes a closed group, unless Runtime.Close has begun. Do not call it for a group
// that has failed: a realignment of pools needs the faults of failed groups.
func (r *registry) removeGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.groups, g); i >= 0 && r.context.Err() == nil {
		r.groups = slices.Delete(slices.Clone(r.groups), i, i+1)
	}
}

// addPool adds a new pool and gives it its id and its number. The id is the same on all ranks of
// the pool's domain (the group whose ranks share the pool). Pools without a domain share id 0 and
// have distinct numbers.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.nextPoolID(p.domain)
	number := id
	isLocal := p.domain == nil
	if isLocal {
		number = r.localPools
		r.localPools++
	}

	p.identify(id, number)
	r.pools = append(r.pools, p)
	r.ranges.set(p, p.segments.arenaBytes)
}

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

func (r *registry) countPools(domain *Group) int {
	count := 0
	for _, p := range r.allPools() {
		if p.domain == domain {
			count++
		}
	}

	return count
}

// poolsPerDomain is the number of distinct ids for the pools of one domain. It is a power of two:
// the low bits of an id number the domain's pools, and the high bits are those of the domain's key
// (a hash of the group's id).
const poolsPerDomain = 1 << 16

// domainBits returns the high bits of a pool's id or of a group's key.
func domainBits(idOrKey uint64) uint64 { return idOrKey &^ (poolsPerDomain - 1) }

// nextPoolID returns the id of a domain's next pool, which is the same on all ranks. For the
// world, the id is the pool's number. The caller must hold mu.
func (r *registry) nextPoolID(domain *Group) uint64 {
	if domain == nil {
		return 0
	}

	number := domain.poolCount
	domain.poolCount++
	if domain == r.world {
		return number
	}

	return domainBits(domain.key) | number%poolsPerDomain
}

// poolName returns the name of the pool with an id, for messages. If this rank has neither the
// pool nor its domain, the name contains only the id.
func (r *registry) poolName(id uint64) string {
	if id < poolsPerDomain { // a pool of the world
		return fmt.Sprintf("pool %d", id)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		if p.id == id && p.domain != nil {
			return fmt.Sprintf("pool %d of group %s", id%poolsPerDomain, p.domain.id)
		}
	}

	for _, g := range r.groups {
		if domainBits(g.key) == domainBits(id) {
			return fmt.Sprintf("pool %d of group %s", id%poolsPerDomain, g.id)
		}
	}

	return fmt.Sprintf("pool %#x", id)
}
