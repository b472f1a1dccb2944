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

// rankInventory is the state of a rank's pools. The ranks exchange it before a realignment.
type rankInventory struct {
	Capturing bool     // a stream of the rank is being captured
	Trouble   string   // why the rank cannot change its pools, or ""
	Faults    []uint64 // keys of the groups whose faults a call has returned on the rank
	Pools     []poolInventory
}

// poolInventory is the state of a pool on one rank.
type poolInventory struct {
	Pool     uint64
	Wanted   bool   // a realignment is necessary
	Position uint64 // number of events in the pool's history
	Start    uint64 // lowest position at which the rank's history can restart
	alloc.Inventory
}

// realign exchanges inventories and gives the pools of the call the same layout on all ranks. If
// pools cannot be changed, it returns the same realignError on all ranks.
func (a *aligner) realign(ctx context.Context, c *alignedCall) error {
	ownInventory := a.takeInventory(ctx, c)
	payload, err := json.Marshal(ownInventory)
	if err != nil {
		return fmt.Errorf("encoding the pool inventory: %w", err)
	}
	payloads, err := exchangeInParts(ctx, a.comparison.exchangeOn(driver.LaneControl), payload)
	if err != nil {
		return err
	}
	all := make([]rankInventory, len(payloads))
	for r := range payloads {
		if err := json.Unmarshal(payloads[r], &all[r]); err != nil {
			return fmt.Errorf("decoding the pool inventory of rank %d: %w", a.ranks[r], err)
		}
	}
	return a.realignWith(ctx, all, c.pools)
}

// exchangeInParts exchanges payloads of any size, in chunks, and returns the payloads of all
// ranks. The first byte of a chunk is 1 if another chunk of the rank follows, and otherwise 0.
func exchangeInParts(
	ctx context.Context, exchange agreement.Exchange, payload []byte,
) (payloads [][]byte, err error) {
	for hasMore := true; hasMore; {
		chunk := payload[:min(len(payload), driver.MaxPayload-1)]
		payload = payload[len(chunk):]
		header := []byte{0}
		if len(payload) > 0 {
			header[0] = 1
		}
		chunks, err := exchange(ctx, append(header, chunk...))
		if err != nil {
			return nil, err
		}
		hasMore = false
		payloads = append(payloads, make([][]byte, len(chunks)-len(payloads))...)
		for r, chunk := range chunks {
			if len(chunk) == 0 {
				return nil, invalid("rank %d of the group sent an empty part of its inventory", r)
			}
			hasMore = hasMore || chunk[0] == 1
			payloads[r] = append(payloads[r], chunk[1:]...)
		}
	}
	return payloads, nil
}

// takeInventory waits for this rank's queued work and lists the blocks of the call's pools. It
// omits closed pools. If the rank cannot change its pools, the inventory says why.
func (a *aligner) takeInventory(ctx context.Context, c *alignedCall) rankInventory {
	ctx, cancel := context.WithTimeout(ctx, a.limit.Get())
	defer cancel()
	inventories := rankInventory{Capturing: a.rt.captures.isAnyCapturing(nil)}
	marks := make([]alloc.Mark, len(c.pools))
	for i, p := range c.pools {
		marks[i] = p.uses.mark()
	}
	switch err := a.rt.streams.drain(ctx); {
	case errors.Is(err, ErrCapturing):
		inventories.Capturing = true
	case err != nil:
		inventories.Trouble = err.Error()
	}
	for _, other := range a.rt.registry.allGroups() {
		if other.life.fault.Load() == faultReturned {
			inventories.Faults = append(inventories.Faults, other.key)
		}
	}
	if inventories.Capturing || inventories.Trouble != "" {
		return inventories
	}
	for i, p := range c.pools {
		inventory, err := p.realigner.takeInventory(marks[i])
		if errors.Is(err, ErrClosed) {
			continue
		}
		if err != nil {
			inventories.Trouble = err.Error()
		}
		inventory.Wanted = c.shouldAlign(&a.roster, p)
		inventories.Pools = append(inventories.Pools, inventory)
	}
	return inventories
}

// realignWith realigns pools according to the inventories of all ranks.
func (a *aligner) realignWith(ctx context.Context, all []rankInventory, pools []*Pool) error {
	if err := a.checkAllReady(all); err != nil {
		for _, p := range pools {
			p.realigner.markSuspect(nil) // every rank does this, so that the next call tries again
		}
		return err
	}
	a.resolveFaults(all)
	var errs []error
	var changedPools []*Pool
	removedSegments := map[*Pool][]*segment{}
	for _, p := range pools {
		inventories := collectInventories(p.id, all)
		if inventories == nil {
			continue
		}
		p.realigner.markSuspect(nil)
		layout, conflict := alloc.CommonLayout(allocInventories(inventories))
		if conflict != nil {
			errs = append(errs, &realignError{a.newConflictError(p, conflict)})
			continue
		}
		removedSegments[p] = p.realigner.rebuild(&a.roster, layout, inventories)
		if hasRemovedSegment(layout, inventories) {
			changedPools = append(changedPools, p)
		}
	}
	if len(changedPools) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, a.unmapRemoved(ctx, changedPools, removedSegments))...)
}

// checkAllReady returns an error if some rank cannot change its pools.
func (a *aligner) checkAllReady(all []rankInventory) error {
	for r, inventory := range all {
		switch {
		case inventory.Capturing:
			return &realignError{fmt.Errorf("realigning pools after a fault: rank %d: %w",
				a.ranks[r], ErrCapturing)}
		case inventory.Trouble != "":
			return &realignError{fmt.Errorf("realigning pools after a fault: rank %d: %s",
				a.ranks[r], inventory.Trouble)}
		}
	}
	return nil
}

// resolveFaults records that the faults in the inventories are repaired, except for a fault of
// this group.
func (a *aligner) resolveFaults(all []rankInventory) {
	for _, failed := range a.rt.registry.allGroups() {
		for _, inventory := range all {
			if failed.fullID != a.fullID && slices.Contains(inventory.Faults, failed.key) {
				failed.life.resolve()
			}
		}
	}
}

// collectInventories returns the inventories of a pool on all ranks. If no rank wants a
// realignment of the pool, or some rank lacks the pool, it returns nil.
func collectInventories(pool uint64, all []rankInventory) []poolInventory {
	var inventories []poolInventory
	isWanted := false
	for _, inventory := range all {
		i := slices.IndexFunc(inventory.Pools, func(s poolInventory) bool { return s.Pool == pool })
		if i < 0 {
			return nil
		}
		inventories = append(inventories, inventory.Pools[i])
		isWanted = isWanted || inventory.Pools[i].Wanted
	}
	if !isWanted {
		return nil
	}
	return inventories
}

func allocInventories(inventories []poolInventory) []alloc.Inventory {
	var all []alloc.Inventory
	for _, s := range inventories {
		all = append(all, s.Inventory)
	}
	return all
}

// hasRemovedSegment reports whether the layout retires a segment that is mapped on some rank.
func hasRemovedSegment(layout alloc.Arrangement, inventories []poolInventory) bool {
	for _, s := range inventories {
		for ordinal, extent := range s.Segments {
			if extent.Bytes > 0 && layout.Segments[ordinal].Bytes == 0 {
				return true
			}
		}
	}
	return false
}

// unmapRemoved unmaps segments only after all ranks have deregistered them, because other ranks
// may read them until then.
func (a *aligner) unmapRemoved(
	ctx context.Context, pools []*Pool, removedSegments map[*Pool][]*segment,
) error {
	var errs []error
	for _, p := range pools {
		errs = append(errs, p.realigner.deregisterReleasing())
	}
	if _, err := a.comm.Exchange(ctx, driver.LaneControl, nil); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range pools {
		errs = append(errs, p.segments.endEach(removedSegments[p], p.segments.release))
	}
	return errors.Join(errs...)
}

func (a *aligner) newConflictError(p *Pool, c *alloc.Conflict) error {
	d := &DivergenceError{
		Group: a.id, Members: slices.Clone(a.ranks), Kind: DivergedPlacement,
		Pool: p.rt.registry.poolName(p.id), PoolID: p.id, Deviant: []int{}, Why: "live block",
	}
	for r, event := range c.Descriptions {
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
