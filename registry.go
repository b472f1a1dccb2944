package symmem

import (
	"context"
	"fmt"
	"slices"

	"symmem/internal/ranked"
)

// registry lists the groups and pools that a Runtime has made and not closed.
type registry struct {
	mu     *ranked.Mutex[runtimeMu]
	life   context.Context // ends when Close of the Runtime begins; both lists then stay as they are
	world  *Group
	groups []*Group // guarded by mu
	pools  []*Pool  // guarded by mu
	arenas arenas   // of pools
	// localPools counts the pools made without a domain; guarded by mu.
	localPools uint64
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

// addGroup adds a group and starts its goroutines, unless Close has begun, which waits only for
// goroutines of groups that it finds.
func (r *registry) addGroup(g *Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := context.Cause(r.life); err != nil {
		return err
	}
	g.life.background.Go(g.life.watch)
	g.comparison.startInBackground()
	r.groups = append(r.groups, g)
	return nil
}

// forgetGroup removes a group that is closed. Groups that have failed stay, since ranks that
// realign pools ask for their faults.
func (r *registry) forgetGroup(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.groups, g); i >= 0 && r.life.Err() == nil {
		r.groups = slices.Delete(slices.Clone(r.groups), i, i+1)
	}
}

// addPool adds a pool and assigns its id.
func (r *registry) addPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.id = r.poolID(p.domain)
	if p.number = p.id; p.domain == nil {
		p.number = r.localPools
		r.localPools++
	}
	r.pools = append(r.pools, p)
	r.arenas.set(p, p.space)
}

// forgetPool removes a pool that is closed.
func (r *registry) forgetPool(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.pools, p); i >= 0 && r.life.Err() == nil {
		r.pools = slices.Delete(slices.Clone(r.pools), i, i+1)
	}
}

// keepAddresses sets how many addresses of a pool that is closed are still in use.
func (r *registry) keepAddresses(p *Pool, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arenas.set(p, bytes)
}

// poolsOf counts the pools of a domain.
func (r *registry) poolsOf(domain *Group) int {
	count := 0
	for _, p := range r.allPools() {
		if p.domain == domain {
			count++
		}
	}
	return count
}

// poolNumbers is the number of pools of one domain that have different ids.
const poolNumbers = 1 << 16

// poolID returns the id of the next pool of a domain, which is the same on all ranks of the domain
// and differs from that of any pool of another one. Pools of the world have small ids, since those
// are in every report. mu is held.
func (r *registry) poolID(domain *Group) uint64 {
	if domain == nil {
		return 0
	}
	count := domain.poolsMade
	domain.poolsMade++
	if domain == r.world {
		return count
	}
	return domain.key&^(poolNumbers-1) | count%poolNumbers
}

// poolName names a pool by its id. The ids of pools of the world are small; those of other domains
// begin with the key of the group.
func (r *registry) poolName(id uint64) string {
	if id < poolNumbers {
		return fmt.Sprintf("pool %d", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		if p.id == id && p.domain != nil {
			return fmt.Sprintf("pool %d of group %s", id%poolNumbers, p.domain.id)
		}
	}
	for _, g := range r.groups {
		if g.key&^(poolNumbers-1) == id&^(poolNumbers-1) {
			return fmt.Sprintf("pool %d of group %s", id%poolNumbers, g.id)
		}
	}
	return fmt.Sprintf("pool %#x", id)
}
