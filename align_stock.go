package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
)

// rankInventory holds the state of a rank's pools, which ranks exchange before a realignment.
type rankInventory struct {
	Capturing bool     // the rank is capturing a stream
	Trouble   string   // any other reason why the rank cannot change its pools
	Faults    []uint64 // keys of the groups whose faults the rank has seen
	Pools     []poolInventory
}

// poolInventory is a rank's inventory of one pool.
type poolInventory struct {
	Pool     uint64
	Wanted   bool // the rank requests a realignment
	Position uint64
	Start    uint64 // the lowest position at which the ledger can restart
	alloc.Inventory
}

// align returns the same unalignedError on all ranks if pools cannot be changed.
func (a *aligner) align(ctx context.Context, c *alignedCall) error {
	local := a.takeInventory(ctx, c)
	payload, err := json.Marshal(local)
	if err != nil {
		return fmt.Errorf("encoding the pool inventory: %w", err)
	}
	payloads, err := exchangeLong(ctx, a.comparison.exchangeOn(driver.LaneControl), payload)
	if err != nil {
		return err
	}
	all := make([]rankInventory, len(payloads))
	for r := range payloads {
		if err := json.Unmarshal(payloads[r], &all[r]); err != nil {
			return fmt.Errorf("decoding the pool inventory of rank %d: %w", a.ranks[r], err)
		}
	}
	return a.alignWith(ctx, all, c.pools)
}

func exchangeLong(
	ctx context.Context, exchange agreement.Exchange, payload []byte,
) (whole [][]byte, err error) {
	for more := true; more; {
		part := payload[:min(len(payload), driver.MaxPayload-1)]
		payload = payload[len(part):]
		head := []byte{0}
		if len(payload) > 0 {
			head[0] = 1
		}
		parts, err := exchange(ctx, append(head, part...))
		if err != nil {
			return nil, err
		}
		more = false
		whole = append(whole, make([][]byte, len(parts)-len(whole))...)
		for r, part := range parts {
			if len(part) == 0 {
				return nil, invalid("rank %d of the group sent an empty part of a payload", r)
			}
			more = more || part[0] == 1
			whole[r] = append(whole[r], part[1:]...)
		}
	}
	return whole, nil
}

// takeInventory waits for this rank's queued work and returns the inventories of its pools.
func (a *aligner) takeInventory(ctx context.Context, c *alignedCall) rankInventory {
	ctx, cancel := context.WithTimeout(ctx, a.limit.Get())
	defer cancel()
	local := rankInventory{Capturing: a.rt.captures.inProgress(nil)}
	marks := make([]alloc.Mark, len(c.pools))
	for i, p := range c.pools {
		marks[i] = p.uses.mark()
	}
	switch err := a.rt.streams.drain(ctx); {
	case errors.Is(err, ErrCapturing):
		local.Capturing = true
	case err != nil:
		local.Trouble = err.Error()
	}
	for _, other := range a.rt.registry.allGroups() {
		if other.life.fault.Load() == faultReturned {
			local.Faults = append(local.Faults, other.key)
		}
	}
	if local.Capturing || local.Trouble != "" {
		return local
	}
	for i, p := range c.pools {
		s, err := p.realigner.takeInventory(marks[i])
		if errors.Is(err, ErrClosed) {
			continue
		}
		if err != nil {
			local.Trouble = err.Error()
		}
		s.Wanted = c.wantsAlign(&a.roster, p)
		local.Pools = append(local.Pools, s)
	}
	return local
}

func (a *aligner) alignWith(ctx context.Context, all []rankInventory, pools []*Pool) error {
	if err := a.checkReady(all); err != nil {
		for _, p := range pools {
			p.realigner.markSuspect(nil) // on all ranks, so that the next call tries again
		}
		return err
	}
	a.resolveFaults(all)
	var errs []error
	var changed []*Pool
	gone := map[*Pool][]*segment{}
	for _, p := range pools {
		inventories := poolInventories(p.id, all)
		if inventories == nil {
			continue
		}
		p.realigner.markSuspect(nil)
		layout, conflict := alloc.Union(inventoriesOf(inventories))
		if conflict != nil {
			errs = append(errs, &unalignedError{a.conflict(p, conflict)})
			continue
		}
		gone[p] = p.realigner.rebuild(&a.roster, layout, inventories)
		if dropsSegment(layout, inventories) {
			changed = append(changed, p)
		}
	}
	if len(changed) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, a.unmapRetired(ctx, changed, gone))...)
}

func (a *aligner) checkReady(all []rankInventory) error {
	for r, one := range all {
		switch {
		case one.Capturing:
			return &unalignedError{fmt.Errorf("realigning pools after a fault: rank %d: %w",
				a.ranks[r], ErrCapturing)}
		case one.Trouble != "":
			return &unalignedError{fmt.Errorf("realigning pools after a fault: rank %d: %s",
				a.ranks[r], one.Trouble)}
		}
	}
	return nil
}

func (a *aligner) resolveFaults(all []rankInventory) {
	for _, failed := range a.rt.registry.allGroups() {
		for _, one := range all {
			if failed.full != a.full && slices.Contains(one.Faults, failed.key) {
				failed.life.resolve()
			}
		}
	}
}

// poolInventories returns all ranks' inventories of a pool. It returns nil if no rank requests a
// realignment of the pool or some rank lacks the pool.
func poolInventories(pool uint64, all []rankInventory) []poolInventory {
	var inventories []poolInventory
	wanted := false
	for _, one := range all {
		i := slices.IndexFunc(one.Pools, func(s poolInventory) bool { return s.Pool == pool })
		if i < 0 {
			return nil
		}
		inventories = append(inventories, one.Pools[i])
		wanted = wanted || one.Pools[i].Wanted
	}
	if !wanted {
		return nil
	}
	return inventories
}

func inventoriesOf(inventories []poolInventory) []alloc.Inventory {
	var all []alloc.Inventory
	for _, s := range inventories {
		all = append(all, s.Inventory)
	}
	return all
}

func dropsSegment(l alloc.Arrangement, inventories []poolInventory) bool {
	for _, s := range inventories {
		for ordinal, extent := range s.Segments {
			if extent.Bytes > 0 && l.Segments[ordinal].Bytes == 0 {
				return true
			}
		}
	}
	return false
}

// unmapRetired unmaps the segments that the new layouts lack. It first waits until all ranks have
// deregistered them, because peers may read a segment through their windows until then.
func (a *aligner) unmapRetired(
	ctx context.Context, pools []*Pool, gone map[*Pool][]*segment,
) error {
	var errs []error
	for _, p := range pools {
		errs = append(errs, p.realigner.deregisterReleasing())
	}
	if _, err := a.comm.Exchange(ctx, driver.LaneControl, nil); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range pools {
		errs = append(errs, p.segments.forEachMapped(gone[p], p.segments.release))
	}
	return errors.Join(errs...)
}

func (a *aligner) conflict(p *Pool, c *alloc.Conflict) error {
	d := &DivergenceError{
		Group: a.id, Members: slices.Clone(a.ranks), Kind: DivergedPlacement,
		Pool: p.rt.registry.poolName(p.id), PoolID: p.id, Deviant: []int{}, Why: "live block",
	}
	for r, event := range c.Has {
		i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == event })
		if i < 0 {
			i = len(d.Sides)
			d.Sides = append(d.Sides, Side{Event: event})
		}
		d.Sides[i].Ranks = append(d.Sides[i].Ranks, a.ranks[r])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "group %s: after a fault, ranks have different live buffers in %s", a.id, d.Pool)
	for i := range d.Sides {
		slices.Sort(d.Sides[i].Ranks)
		fmt.Fprintf(&b, "; %s: %q", driver.RanksOf(d.Sides[i].Ranks, a.ranks), d.Sides[i].Event)
	}
	b.WriteString("; free the buffers that are not live on all ranks and call again: the group " +
		"stays usable")
	d.Message = b.String()
	return d
}
