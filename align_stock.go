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
	"symmem/internal/ledger"
)

// stocktaking is a rank's report about its pools.
type stocktaking struct {
	// Capturing reports whether the rank captures a stream.
	Capturing bool
	// Trouble describes any other reason why the rank's pools cannot be changed.
	Trouble string
	// Faults lists the keys of groups whose faults the rank has seen.
	Faults []uint64
	Pools  []stock
}

// stock is the inventory of a rank's pool.
type stock struct {
	Pool     uint64
	Wanted   bool   // the rank requests a realignment
	Position uint64 // the ledger's current position
	Start    uint64 // the lowest position at which the ledger can restart
	alloc.Inventory
}

// align realigns the pools of a meeting on all ranks of the group. Every rank returns the same
// error: an unalignedError, or the error of a failed exchange.
func (a *aligner) align(ctx context.Context, m *meeting) error {
	mine := a.takeStock(ctx, m)
	payload, err := json.Marshal(mine)
	if err != nil {
		return fmt.Errorf("encoding the pool inventory: %w", err)
	}
	got, err := exchangeLong(ctx, a.comparison.lane(driver.LaneControl), payload)
	if err != nil {
		return err
	}
	all := make([]stocktaking, len(got))
	for r := range got {
		if err := json.Unmarshal(got[r], &all[r]); err != nil {
			return fmt.Errorf("decoding the pool inventory of rank %d: %w", a.ranks[r], err)
		}
	}
	return a.alignAs(ctx, all, m.pools)
}

// exchangeLong exchanges payloads of any length by splitting them into parts.
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
		got, err := exchange(ctx, append(head, part...))
		if err != nil {
			return nil, err
		}
		more = false
		whole = append(whole, make([][]byte, len(got)-len(whole))...)
		for r, theirs := range got {
			if len(theirs) == 0 {
				return nil, invalid("rank %d of the group sent an empty part of a payload", r)
			}
			more = more || theirs[0] == 1
			whole[r] = append(whole[r], theirs[1:]...)
		}
	}
	return whole, nil
}

// takeStock waits for this rank's queued work and returns the inventories of its pools.
func (a *aligner) takeStock(ctx context.Context, m *meeting) stocktaking {
	ctx, cancel := context.WithTimeout(ctx, a.limit.Get())
	defer cancel()
	mine := stocktaking{Capturing: a.rt.captures.any(nil)}
	marks := make([]alloc.Mark, len(m.pools))
	for i, p := range m.pools {
		marks[i] = p.mark()
	}
	switch err := a.rt.streams.drain(ctx); {
	case errors.Is(err, ErrCapturing):
		mine.Capturing = true
	case err != nil:
		mine.Trouble = err.Error()
	}
	for _, other := range a.rt.registry.allGroups() {
		if other.life.fault.Load() == seen {
			mine.Faults = append(mine.Faults, other.key)
		}
	}
	if mine.Capturing || mine.Trouble != "" {
		return mine
	}
	for i, p := range m.pools {
		s, err := suspectPool{p}.takeStock(marks[i])
		if errors.Is(err, ErrClosed) {
			continue
		}
		if err != nil {
			mine.Trouble = err.Error()
		}
		s.Wanted = m.wants(&a.roster, p)
		mine.Pools = append(mine.Pools, s)
	}
	return mine
}

// takeStock ends the uses that were recorded before a mark and returns the inventory of the pool.
// The caller has waited for the work before the mark.
func (p suspectPool) takeStock(before alloc.Mark) (stock, error) {
	streams := p.rt.streams.all()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed { // not usable: a call that has entered the pool realigns it even if Close has begun
		return stock{}, errPoolClosed
	}
	if !p.core.QuietSince(before) {
		return stock{}, errors.New("another goroutine used or freed a buffer during the realignment")
	}
	for _, s := range streams {
		p.synced(s, before)
	}
	held, err := p.core.Held()
	return stock{
		Pool: p.id, Position: p.ledger.Position(), Start: p.ledger.NextStart(), Inventory: held,
	}, err
}

// alignAs realigns pools according to the reports of all ranks.
func (a *aligner) alignAs(ctx context.Context, all []stocktaking, pools []*Pool) error {
	if err := a.unready(all); err != nil {
		for _, p := range pools {
			suspectPool{p}.raise(nil) // on all ranks, until it is realigned
		}
		return err
	}
	a.resolveFaults(all)
	var errs []error
	var changed []*Pool
	gone := map[*Pool][]*segment{}
	for _, p := range pools {
		stocks := stocksOf(p.id, all)
		if stocks == nil {
			continue
		}
		suspectPool{p}.raise(nil)
		layout, conflict := alloc.Union(inventoriesOf(stocks))
		if conflict != nil {
			errs = append(errs, &unalignedError{a.conflict(p, conflict)})
			continue
		}
		gone[p] = suspectPool{p}.rebuild(&a.roster, layout, stocks)
		if retires(layout, stocks) {
			changed = append(changed, p)
		}
	}
	if len(changed) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, a.unmapRetired(ctx, changed, gone))...)
}

// unready returns an error if the pools of some rank cannot be changed now.
func (a *aligner) unready(all []stocktaking) error {
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

// resolveFaults marks the faults of this rank's groups resolved if some rank has seen them.
func (a *aligner) resolveFaults(all []stocktaking) {
	for _, failed := range a.rt.registry.allGroups() {
		for _, one := range all {
			if failed.full != a.full && slices.Contains(one.Faults, failed.key) {
				failed.life.resolve()
			}
		}
	}
}

// stocksOf returns all ranks' inventories of a pool. It returns nil if no rank requests a
// realignment of the pool, or if some rank does not have the pool.
func stocksOf(pool uint64, all []stocktaking) []stock {
	var stocks []stock
	wanted := false
	for _, one := range all {
		i := slices.IndexFunc(one.Pools, func(s stock) bool { return s.Pool == pool })
		if i < 0 {
			return nil
		}
		stocks = append(stocks, one.Pools[i])
		wanted = wanted || one.Pools[i].Wanted
	}
	if !wanted {
		return nil
	}
	return stocks
}

func inventoriesOf(stocks []stock) []alloc.Inventory {
	var all []alloc.Inventory
	for _, s := range stocks {
		all = append(all, s.Inventory)
	}
	return all
}

// retires reports whether a layout lacks a segment that some rank has.
func retires(l alloc.Arrangement, stocks []stock) bool {
	for _, s := range stocks {
		for ordinal, extent := range s.Segments {
			if extent.Bytes > 0 && l.Segments[ordinal].Bytes == 0 {
				return true
			}
		}
	}
	return false
}

// rebuild replaces the free space of the pool, restarts its history and returns the segments to
// unmap. If another goroutine has changed the pool meanwhile, the pool stays suspect.
func (p suspectPool) rebuild(g *roster, l alloc.Arrangement, stocks []stock) []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ledger.Position() != stocks[g.rank].Position {
		return nil
	}
	gone, err := p.core.Rebuild(l)
	if err != nil {
		return nil
	}
	for len(p.segments) < len(l.Segments) {
		p.segments = append(p.segments, nil)
	}
	for ordinal, s := range p.segments {
		if s == nil {
			continue
		}
		s.stream = 0
		s.releasing = s.releasing || l.Segments[ordinal].Bytes == 0
	}
	clear(p.useEvents)
	start := uint64(0)
	for _, s := range stocks {
		start = max(start, s.Start)
	}
	poolEvents{p.Pool}.collect()
	p.ledger.Restart(start, digestOf(l, stocks[0]))
	poolEvents{p.Pool}.restart(start)
	p.suspicion.rebuilds++
	p.trust(g)
	var segments []*segment
	for _, s := range gone {
		segments = append(segments, p.segments[s.Ordinal])
	}
	slices.SortFunc(segments, byOrdinal)
	return segments
}

// trust records that the ranks of a group have realigned the pool. p.mu is held.
func (p suspectPool) trust(g *roster) {
	d := &p.suspicion
	for failed := range d.faults {
		if failed.fault.Load() == resolved {
			delete(d.faults, failed)
		}
	}
	switch {
	case len(d.faults) > 0: // a fault has been seen meanwhile
	case g.contains(&p.domain.roster):
		d.raised, d.aligned, d.before = false, nil, nil
	default:
		d.aligned = slices.Clone(g.ranks)
	}
}

// digestOf returns a digest of the contents of a realigned pool.
func digestOf(l alloc.Arrangement, s stock) uint64 {
	d := ledger.Empty
	for _, extent := range l.Segments {
		d = ledger.Mix(d, uint64(extent.Bytes), 1)
	}
	for _, r := range l.Kept {
		d = ledger.Mix(ledger.Mix(d, uint64(r.Segment), uint64(r.Offset)), uint64(r.Size), 2)
	}
	for _, b := range s.Blocks {
		if b.Live {
			d = ledger.Mix(ledger.Mix(d, uint64(b.Segment), uint64(b.Offset)), uint64(b.Size),
				uint64(b.Stream)<<8|3)
		}
	}
	return d
}

// unmapRetired unmaps segments that differ between ranks. Peers may read a segment through their
// windows, so it first waits until all ranks have deregistered the segments.
func (a *aligner) unmapRetired(
	ctx context.Context, pools []*Pool, gone map[*Pool][]*segment,
) error {
	var errs []error
	for _, p := range pools {
		errs = append(errs, suspectPool{p}.deregisterReleasing())
	}
	if _, err := a.comm.Exchange(ctx, driver.LaneControl, nil); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range pools {
		errs = append(errs, p.retire(gone[p], (*Pool).release))
	}
	return errors.Join(errs...)
}

// deregisterReleasing deregisters all segments that are being released.
func (p suspectPool) deregisterReleasing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.segments {
		if s != nil && s.releasing {
			errs = append(errs, p.deregister(s))
		}
	}
	return errors.Join(errs...)
}

// conflict returns the error for a live block that differs between ranks.
func (a *aligner) conflict(p *Pool, c *alloc.Conflict) error {
	d := &DivergenceError{
		Group: a.id, Members: slices.Clone(a.ranks), Kind: DivergedPlacement,
		Pool: p.rt.registry.poolName(p.id), PoolID: p.id, Deviant: []int{}, Why: "live block",
	}
	for r, has := range c.Has {
		i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == has })
		if i < 0 {
			i = len(d.Sides)
			d.Sides = append(d.Sides, Side{Event: has})
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
