package alloc

import (
	"fmt"
	"strings"
	"testing"
)

// Verify returns an error if an invariant is violated. The invariants are that blocks tile each
// segment, that no two neighbors are free, that every free block is in its class exactly once,
// that every deferred block is queued exactly once, and that the counters match the blocks. It
// takes time proportional to the number of blocks.
func (c *Core) Verify() error {
	c.mergeLastFreed()
	a := audit{Core: c, free: map[uint32]bool{}, queued: map[uint32]bool{}}
	for ordinal := range c.segments {
		if err := a.verifySegment(int32(ordinal)); err != nil {
			return fmt.Errorf("segment %d: %w", ordinal, err)
		}
	}

	for n, index := range c.indexes {
		if index == nil {
			continue
		}

		if err := a.verifyIndex(uint32(n), index); err != nil {
			return fmt.Errorf("index %d: %w", n, err)
		}
	}

	for n := range c.streams {
		if err := a.verifyQueue(uint32(n)); err != nil {
			return fmt.Errorf("queue of stream %d: %w", c.streams[n].name, err)
		}
	}

	return a.verifyCounts()
}

// audit collects counts while Verify walks a Core.
type audit struct {
	*Core
	found  counts
	bytes  int64           // mapped
	free   map[uint32]bool // free blocks not yet found in a class
	queued map[uint32]bool // deferred blocks not yet found in a queue
}

func (a *audit) verifySegment(ordinal int32) error {
	s := &a.segments[ordinal]
	if s.bytes == 0 {
		return nil
	}

	if s.isRetired {
		defer func(before counts) {
			before.pinnedBytes = a.found.pinnedBytes
			a.found = before
		}(a.found)
	} else {
		a.bytes += s.bytes
		a.found.segmentCount++
	}

	position := s.base
	for regionID := s.firstRegion; regionID != 0; regionID = a.regions[regionID].next {
		region := &a.regions[regionID]
		if region.ordinal != ordinal || region.origin != s.base ||
			region.owner != a.streams[region.indexID/2].number ||
			(position-s.base)%spanUnits != 0 {
			return fmt.Errorf("invalid region %d at unit %d: %+v", regionID, position-s.base, *region)
		}

		var err error
		if position, err = a.verifyRegion(regionID, position); err != nil {
			return fmt.Errorf("region %d: %w", regionID, err)
		}
	}

	if end := s.base + uint64(s.bytes)>>unitShift; position != end {
		return fmt.Errorf("blocks end at unit %d, the segment at unit %d", position, end)
	}

	return nil
}

// verifyRegion verifies region r, which must begin at position, and returns the region's end.
func (a *audit) verifyRegion(regionID uint32, position uint64) (uint64, error) {
	region := &a.regions[regionID]
	prev := region.sentinel
	for id := a.blocks[region.sentinel].next; id != region.sentinel; id = a.blocks[id].next {
		b := &a.blocks[id]
		switch {
		case b.position() != position || b.units() == 0:
			return position, fmt.Errorf("block %d of %d bytes is at unit %d, want unit %d",
				id, b.size(), b.position(), position)
		case b.region() != regionID || b.prev() != prev:
			return position, fmt.Errorf("block %d has region %d and previous block %d, want %d and %d",
				id, b.region(), b.prev(), regionID, prev)
		case b.state() == Free && prev != region.sentinel && a.blocks[prev].state() == Free:
			return position, fmt.Errorf("free blocks %d and %d are neighbors", prev, id)
		case b.state() != Free && position+b.units() > region.dirtyEnd:
			return position, fmt.Errorf("block %d ends above the dirty end, %d",
				id, region.dirtyEnd)
		}

		if err := a.countBlock(b, &a.rareFields[id], id); err != nil {
			return position, err
		}

		position, prev = position+b.units(), id
	}

	sentinel := &a.blocks[region.sentinel]
	if sentinel.prev() != prev || sentinel.units() != 0 || sentinel.state() != noState {
		return position, fmt.Errorf("sentinel %d is %+v, want last block %d", region.sentinel, *sentinel,
			prev)
	}

	if region.reservedEnd > region.dirtyEnd || region.dirtyEnd > position {
		return position, fmt.Errorf("reserved end %d, dirty end %d and end %d are out of order",
			region.reservedEnd, region.dirtyEnd, position)
	}

	return position, nil
}

func (a *audit) countBlock(b *block, e *rareFields, id uint32) error {
	switch b.state() {
	case Free:
		a.free[id] = true
	case Live:
		a.found.liveCount++
	case Parked:
		a.found.parkedBytes += b.size()
	case Deferred:
		a.found.deferredBytes += b.size()
		a.queued[id] = true
	default:
		return fmt.Errorf("block %d is %s", id, b.state())
	}

	if b.state() != Free {
		a.found.usedBytes += b.size()
		a.found.requestedBytes += b.requested()
	}

	if e.pins > 0 {
		a.found.pinnedBytes += b.size()
	}

	mayPin, mayUse := b.state() == Live || b.state() == Parked, b.state() != Free
	if b.packed&hasRareFieldsBit == 0 && (e.pins != 0 || e.firstUse != 0) {
		return fmt.Errorf("%s block %d has rare fields but no hasRareFields bit: %+v",
			b.state(), id, *e)
	}

	if e.pins < 0 || e.pins > 0 && !mayPin || e.firstUse != 0 && !mayUse {
		return fmt.Errorf("%s block %d has %d pins and first use %d",
			b.state(), id, e.pins, e.firstUse)
	}

	return nil
}

func (a *audit) verifyIndex(indexID uint32, index *sizeIndex) error {
	for word := range index.words {
		if index.words[word] != 0 != (index.summary>>word&1 == 1) {
			return fmt.Errorf("word %d is %#x, but the summary is %#x",
				word, index.words[word], index.summary)
		}
	}

	last := uint64(0)
	for units, bag := range a.eachClass(index) {
		if units <= last || bag.count == 0 {
			return fmt.Errorf("class of %d units has %d blocks and follows the class of %d units",
				units, bag.count, last)
		}

		last = units
		if err := a.verifyBag(indexID, units, bag); err != nil {
			return fmt.Errorf("class of %d units: %w", units, err)
		}
	}

	for id := range a.free {
		if a.indexIDOf(&a.blocks[id]) == indexID {
			return fmt.Errorf("free block %d is in no class", id)
		}
	}

	return nil
}

func (a *audit) verifyBag(indexID uint32, units uint64, bag *bag) error {
	if bag.heapCount > bag.count || bag.count > bag.capacity {
		return fmt.Errorf("bag has %d keys, %d in the heap, and capacity %d",
			bag.count, bag.heapCount, bag.capacity)
	}

	keys := a.keys[bag.start : bag.start+bag.count]
	for slot, key := range keys {
		id := uint32(key & idMask)
		b := &a.blocks[id]
		switch {
		case !a.free[id] || a.indexIDOf(b) != indexID || b.units() != units:
			return fmt.Errorf("block %d does not belong here", id)
		case b.slot() != uint32(slot) || b.key(id) != key:
			return fmt.Errorf("block %d has slot %d and key %#x, want %d and %#x",
				id, b.slot(), b.key(id), slot, key)
		case slot > 0 && slot < int(bag.heapCount) && keys[(slot-1)/2] > key:
			return fmt.Errorf("block %d is lower than its parent in the heap", id)
		}

		delete(a.free, id)
	}

	for slot := bag.count; slot < bag.capacity; slot++ {
		if key := a.keys[bag.start+slot]; key != noKey {
			return fmt.Errorf("unused slot %d contains key %#x", slot, key)
		}
	}

	return nil
}

func (a *audit) verifyQueue(n uint32) error {
	prev, last := uint32(0), uint64(0)
	for id := a.streams[n].firstDeferred; id != 0; id = a.rareFields[id].nextDeferred {
		b, e := &a.blocks[id], &a.rareFields[id]
		if !a.queued[id] || e.prevDeferred != prev || a.indexIDOf(b)/2 != n || e.firstUse == 0 {
			return fmt.Errorf("block %d has an invalid queue entry", id)
		}

		if now := a.uses[e.firstUse].deferral; now <= last {
			return fmt.Errorf("deferral %d follows deferral %d", now, last)
		}

		delete(a.queued, id)
		prev, last = id, a.uses[e.firstUse].deferral
	}

	if a.streams[n].lastDeferred != prev {
		return fmt.Errorf("queue ends at block %d, want %d", prev, a.streams[n].lastDeferred)
	}

	return nil
}

func (a *audit) verifyCounts() error {
	want := a.counts
	want.peakUsedBytes, want.peakMappedBytes = 0, 0
	switch {
	case len(a.queued) > 0:
		return fmt.Errorf("%d deferred blocks are in no queue", len(a.queued))
	case a.found != want:
		return fmt.Errorf("counted %+v, but the counters are %+v", a.found, want)
	case a.bytes != a.mappedBytes || a.config.Capacity > 0 && a.bytes > a.config.Capacity:
		return fmt.Errorf("counted %d mapped bytes, but the counter is %d", a.bytes, a.mappedBytes)
	case a.counts.peakUsedBytes < a.counts.usedBytes || a.counts.peakMappedBytes < a.mappedBytes:
		return fmt.Errorf("peaks of %d used and %d mapped bytes are below the current values %d and %d",
			a.counts.peakUsedBytes, a.counts.peakMappedBytes, a.counts.usedBytes, a.mappedBytes)
	}

	return nil
}

// Fragmentation returns the fraction of the free cached bytes that lies outside the largest free
// block.
func (s Stats) Fragmentation() float64 {
	if s.Cached == 0 {
		return 0
	}

	return 1 - float64(s.LargestFree)/float64(s.Cached)
}

func TestVerifyFindsBrokenInvariants(t *testing.T) {
	for _, row := range []struct {
		name    string
		corrupt func(c *Core, live, free uint32)
		want    string
	}{
		{"a block that leaves a gap", func(c *Core, live, _ uint32) {
			c.blocks[live].unitsAndPrev -= 1 << idBits
		}, "want unit"},
		{"a block that runs beyond the segment", func(c *Core, _, free uint32) {
			c.blocks[free].unitsAndPrev += 1 << idBits
		}, "blocks end at"},
		{"a broken link", func(c *Core, _, free uint32) { c.blocks[free].setPrev(0) }, "previous block"},
		{"a dirty end below a block", func(c *Core, _, _ uint32) {
			c.regions[1].dirtyEnd = 0
		}, "the dirty end"},
		{"a reserved end above the dirty end", func(c *Core, _, _ uint32) {
			c.regions[1].reservedEnd = 99
		}, "reserved end"},
		{"a list that misses a block", func(c *Core, live, _ uint32) {
			c.blocks[c.regions[1].sentinel].setPrev(live)
		}, "last block"},
		{"a region of another segment", func(c *Core, _, _ uint32) {
			c.regions[1].ordinal++
		}, "region 1"},
		{"free neighbors", func(c *Core, live, _ uint32) {
			c.blocks[live].setState(Free)
		}, "neighbors"},
		{"a pinned free block", func(c *Core, _, free uint32) {
			c.rareFields[free].pins = 1
			c.blocks[free].packed |= hasRareFieldsBit
		}, "1 pins"},
		{"a pin without the hasRareFields bit", func(c *Core, live, _ uint32) {
			c.rareFields[live].pins = 1
		}, "no hasRareFields bit"},
		{"a free block in no class", func(c *Core, _, free uint32) {
			c.removeBlock(c.indexes[0], &c.blocks[free], c.blocks[free].units())
		}, "is in no class"},
		{"a class of another size", func(c *Core, _, free uint32) {
			c.classes[c.findClass(c.indexes[0], c.blocks[free].units())].units--
		}, "does not belong here"},
		{"a slot of another block", func(c *Core, _, free uint32) {
			c.blocks[free].packed += 1 << valueShift
		}, "has slot 1"},
		{"a stale key", func(c *Core, _, free uint32) {
			b := &c.blocks[free]
			bag := &c.classes[c.findClass(c.indexes[0], b.units())].blocks
			c.keys[bag.start+bag.count] = b.key(free)
		}, "unused slot"},
		{"a bit without its summary", func(c *Core, _, _ uint32) { c.indexes[0].summary = 0 }, "summary"},
		{"a deferred block in no queue", func(c *Core, live, _ uint32) {
			c.blocks[live].setState(Deferred)
		}, "no queue"},
		{"a wrong counter", func(c *Core, _, _ uint32) {
			c.counts.usedBytes += Unit
		}, "the counters are"},
		{"a wrong sum of segments", func(c *Core, _, _ uint32) {
			c.mappedBytes += Unit
		}, "mapped bytes"},
		{"a peak below the current value", func(c *Core, _, _ uint32) {
			c.counts.peakUsedBytes = 0
		}, "peaks"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCore(t, Default())
			live := uint32(mustAlloc(t, c, 4096, 0).Handle)
			if err := c.Verify(); err != nil {
				t.Fatal(err)
			}

			row.corrupt(c, live, c.blocks[live].next)
			if err := c.Verify(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Verify() = %v, want an error that contains %q", err, row.want)
			}
		})
	}
}
