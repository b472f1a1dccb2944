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
	// context is canceled when Runtime.Close begins. groups and pools do not change afterwards.
	context        context.Context
	world          *Group              // the group of all ranks
	groups         []*Group            // includes failed groups; guarded by mu
	pools          []*Pool             // guarded by mu
	joinedIDs      map[string]struct{} // ids of all Joins, even failed ones; guarded by mu
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

// removeGroup removes a closed group, unless Runtime.Close has begun. Failed groups must stay,
// because realigning pools needs their faults.
func (r *registry) removeGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.context.Err() != nil {
		return
	}

	if i := slices.Index(r.groups, g); i >= 0 {
		r.groups = slices.Delete(slices.Clone(r.groups), i, i+1)
	}
}

// claimID returns false if a Join has used the id before.
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

// addPool adds a pool. A shared pool gets an id that is equal on all ranks of its domain, the group
// that shares it. It also serves as the pool's number in events. Local pools have only a number.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.domain == nil {
		const localID = 0
		p.identify(localID, r.localPoolCount)
		r.localPoolCount++
	} else {
		id := r.nextPoolID(p.domain)
		p.identify(id, id)
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
		r.pools = slices.Delete(slices.Clone(r.pools), i, i+1)
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

// A pool id consists of 48 bits of the domain's key, a hash, and a 16-bit number of the pool in the
// domain. For the world, the group of all ranks, the key bits are 0.
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

// poolName returns the name of a shared pool for messages. If this rank knows neither the pool nor
// its domain, the name contains only the id.
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
