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
	Pool     uint64 // id, the same on all ranks
	Wanted   bool   // a realignment is necessary
	Position uint64 // number of events in the pool's history
	Start    uint64 // lowest position at which the rank's history can restart
	alloc.Inventory
}

// realign exchanges inventories and gives the pools of the call the same layout on all ranks. It
// is for pools whose layout may differ after a fault (an error that makes a group fail). If pools
// cannot be changed, it returns the same realignError on all ranks.
func (a *aligner) realign(ctx context.Context, c *sharedCall) error {
	ownInventory := a.takeInventory(ctx, c)
	payload, err := json.Marshal(ownInventory)
	if err != nil {
		return fmt.Errorf("encoding the pool inventory: %w", err)
	}

	payloads, err := exchangeInParts(ctx, a.comparison.exchangeOn(driver.LaneControl), payload)
	if err != nil {
		return err
	}

	byRank := make([]rankInventory, len(payloads))
	for i := range payloads {
		if err := json.Unmarshal(payloads[i], &byRank[i]); err != nil {
			return fmt.Errorf("decoding the pool inventory of rank %d: %w", a.ranks[i], err)
		}
	}

	return a.realignWith(ctx, byRank, c.pools)
}

// exchangeInParts exchanges payloads of any size, in chunks, and returns the payloads of all
// ranks. The first byte of a chunk shows whether another chunk of the rank follows.
func exchangeInParts(
	ctx context.Context, exchange agreement.Exchange, payload []byte,
) (payloads [][]byte, err error) {
	const lastChunk, moreChunks = 0, 1
	for {
		part := payload[:min(len(payload), driver.MaxPayload-1)]
		payload = payload[len(part):]
		ownChunk := []byte{lastChunk}
		if len(payload) > 0 {
			ownChunk[0] = moreChunks
		}

		ownChunk = append(ownChunk, part...)
		chunks, err := exchange(ctx, ownChunk)
		if err != nil {
			return nil, err
		}

		if payloads == nil {
			payloads = make([][]byte, len(chunks))
		}

		hasMore := false
		for i, chunk := range chunks {
			if len(chunk) == 0 {
				return nil, invalid("rank %d of the group sent an empty part of its inventory", i)
			}

			hasMore = hasMore || chunk[0] == moreChunks
			payloads[i] = append(payloads[i], chunk[1:]...)
		}

		if !hasMore {
			return payloads, nil
		}
	}
}

// takeInventory waits for this rank's queued work and lists the blocks of the call's pools. It
// omits closed pools. If the rank cannot change its pools, the inventory says why.
func (a *aligner) takeInventory(ctx context.Context, c *sharedCall) rankInventory {
	ctx, cancel := context.WithTimeout(ctx, a.limit.Get())
	defer cancel()
	own := rankInventory{Capturing: a.rt.captures.isAnyCapturing()}
	marks := make([]alloc.Mark, len(c.pools)) // the work up to here is complete after the drain
	for i, p := range c.pools {
		marks[i] = p.uses.mark()
	}

	drainErr := a.rt.streams.drain(ctx)
	if errors.Is(drainErr, ErrCapturing) {
		own.Capturing = true
	} else if drainErr != nil {
		own.Trouble = drainErr.Error()
	}

	for _, other := range a.rt.registry.allGroups() {
		if other.life.faultState.Load() == faultKnown {
			own.Faults = append(own.Faults, other.key)
		}
	}

	if own.Capturing || own.Trouble != "" {
		return own
	}

	for i, p := range c.pools {
		inventory, err := p.realigner.takeInventory(marks[i])
		if errors.Is(err, ErrClosed) {
			continue
		}

		if err != nil {
			own.Trouble = err.Error()
		}

		inventory.Wanted = c.mustRealign(&a.roster, p)
		own.Pools = append(own.Pools, inventory)
	}

	return own
}

// realignWith realigns pools according to the inventories of all ranks. All ranks take the same
// decisions, because they have the same inventories.
func (a *aligner) realignWith(ctx context.Context, byRank []rankInventory, pools []*Pool) error {
	if err := a.checkAllReady(byRank); err != nil {
		for _, p := range pools {
			p.realigner.markSuspect(nil) // every rank does this, so that the next call tries again
		}

		return err
	}

	a.resolveFaults(byRank)
	var errs []error
	var changedPools []*Pool
	removedSegments := map[*Pool][]*segment{}
	for _, p := range pools {
		inventories := collectInventories(p.id, byRank)
		if inventories == nil {
			continue
		}

		p.realigner.markSuspect(nil) // until rebuild succeeds
		layout, conflict := alloc.CommonLayout(allocInventories(inventories))
		if conflict != nil {
			conflictErr := a.newConflictError(p, conflict)
			errs = append(errs, &realignError{conflictErr})
			continue
		}

		removedSegments[p] = p.realigner.rebuild(&a.roster, layout, inventories)
		if hasRemovedSegment(layout, inventories) {
			changedPools = append(changedPools, p)
		}
	}

	if len(changedPools) > 0 {
		unmapErr := a.unmapRemoved(ctx, changedPools, removedSegments)
		errs = append(errs, unmapErr)
	}

	return errors.Join(errs...)
}

// checkAllReady returns an error if some rank cannot change its pools.
func (a *aligner) checkAllReady(byRank []rankInventory) error {
	for i, inventory := range byRank {
		if inventory.Capturing {
			return &realignError{fmt.Errorf("realigning pools after a fault: rank %d: %w",
				a.ranks[i], ErrCapturing)}
		}

		if inventory.Trouble != "" {
			return &realignError{fmt.Errorf("realigning pools after a fault: rank %d: %s",
				a.ranks[i], inventory.Trouble)}
		}
	}

	return nil
}

// resolveFaults records that the faults in the inventories are repaired, except for a fault of
// this group.
func (a *aligner) resolveFaults(byRank []rankInventory) {
	for _, failed := range a.rt.registry.allGroups() {
		for _, inventory := range byRank {
			if failed.fullID != a.fullID && slices.Contains(inventory.Faults, failed.key) {
				failed.life.markRepaired()
			}
		}
	}
}

// collectInventories returns the inventories of a pool on all ranks. If no rank wants a
// realignment of the pool, or some rank lacks the pool, it returns nil.
func collectInventories(poolID uint64, byRank []rankInventory) []poolInventory {
	var inventories []poolInventory
	isWanted := false
	for _, rank := range byRank {
		i := slices.IndexFunc(rank.Pools, func(p poolInventory) bool { return p.Pool == poolID })
		if i < 0 {
			return nil
		}

		inventories = append(inventories, rank.Pools[i])
		isWanted = isWanted || rank.Pools[i].Wanted
	}

	if !isWanted {
		return nil
	}

	return inventories
}

func allocInventories(inventories []poolInventory) []alloc.Inventory {
	var all []alloc.Inventory
	for _, inventory := range inventories {
		all = append(all, inventory.Inventory)
	}

	return all
}

// hasRemovedSegment reports whether the layout retires a segment that is mapped on some rank. The
// layout has an element for each segment of each rank.
func hasRemovedSegment(layout alloc.Arrangement, inventories []poolInventory) bool {
	for _, inventory := range inventories {
		for ordinal, extent := range inventory.Segments {
			isMapped := extent.Bytes > 0
			if isMapped && layout.Segments[ordinal].Bytes == 0 {
				return true
			}
		}
	}

	return false
}

// unmapRemoved deregisters and unmaps segments. It unmaps them only after all ranks have
// deregistered them, because other ranks may read them until then.
func (a *aligner) unmapRemoved(
	ctx context.Context, pools []*Pool, removedSegments map[*Pool][]*segment,
) error {
	var errs []error
	for _, p := range pools {
		deregisterErr := p.realigner.deregisterWithdrawn()
		errs = append(errs, deregisterErr)
	}

	if _, err := a.comm.Exchange(ctx, driver.LaneControl, nil); err != nil {
		errs = append(errs, err)
		return errors.Join(errs...)
	}

	for _, p := range pools {
		unmapErr := p.segments.endEach(removedSegments[p], p.segments.release)
		errs = append(errs, unmapErr)
	}

	return errors.Join(errs...)
}

// newConflictError returns a DivergenceError that describes which ranks have which live buffers.
func (a *aligner) newConflictError(p *Pool, c *alloc.Conflict) error {
	d := &DivergenceError{
		Group: a.id, Members: slices.Clone(a.ranks), Kind: DivergedPlacement,
		Pool: p.rt.registry.poolName(p.id), PoolID: p.id, Deviant: []int{}, Why: "live block",
	}
	for groupRank, event := range c.Descriptions {
		i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == event })
		if i < 0 {
			i = len(d.Sides)
			d.Sides = append(d.Sides, Side{Event: event})
		}

		d.Sides[i].Ranks = append(d.Sides[i].Ranks, a.ranks[groupRank])
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
