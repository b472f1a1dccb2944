// Package snapshot reads PyTorch's memory snapshots, which torch.cuda.memory._dump_snapshot and its
// C++ counterparts write as pickles or JSON.
//
// A snapshot contains the allocator's final state and a trace of the events before it. The package
// reconstructs the initial state by undoing the trace from the end. The format depends on the
// version of PyTorch, so the package looks at the keys that are present.
package snapshot

import (
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// StreamedLists selects the lists whose elements plain.Decode passes to Reader.AddElement. The key
// "" is for the oldest format, in which the file is a list of segments.
var StreamedLists = []plain.StreamedList{
	{Key: "device_traces", Levels: 2}, {Key: "segments", Levels: 1}, {Key: "", Levels: 1},
}

// poolID is PyTorch's ID of a pool: (0, 0) for the default pool, (0, n) for a MemPool, and (n, 0)
// for the pool of a graph.
type poolID [2]int64

// unknownPool is the ID of pools that the file does not state. PyTorch does not use it.
var unknownPool = poolID{-1, -1}

// rawEvent is an event of the trace as in the file. A segment is a range of memory that PyTorch has
// mapped, and a block is a part of a segment.
type rawEvent struct {
	number  int64 // index in the trace of the device
	address uint64
	size    int64 // in bytes
	stream  int64 // stream ID, which is an address; 0 is the default stream
	time    int64 // UTC in microseconds since 1970, or 0
	pool    poolID
	stack   int32 // index in Rank.Stacks, or -1
	action  action
}

// action is the kind of an event, as PyTorch distinguishes them.
type action uint8

const (
	actionAlloc         action = iota + 1
	actionFreeRequested        // the program has freed a block, which a stream may still be using
	actionFreeCompleted        // a freed block is no longer in use
	actionSegmentAlloc
	actionSegmentFree
	actionSegmentMap   // maps memory in an expandable segment
	actionSegmentUnmap // unmaps memory in an expandable segment
	actionIgnored      // an event that changes no memory (snapshot, oom), or an unknown one
)

// actionsByName maps PyTorch's names of actions. Old versions of PyTorch write "free" instead of
// "free_completed".
var actionsByName = map[string]action{
	"alloc": actionAlloc, "free_requested": actionFreeRequested,
	"free_completed": actionFreeCompleted, "segment_alloc": actionSegmentAlloc,
	"segment_free": actionSegmentFree, "segment_map": actionSegmentMap,
	"segment_unmap": actionSegmentUnmap, "snapshot": actionIgnored, "oom": actionIgnored,
	"free": actionFreeCompleted,
}

// finalSegment is a segment at the end of the trace.
type finalSegment struct {
	device       int64
	address      uint64
	bytes        int64
	stream       int64
	pool         poolID
	isExpandable bool
	blocks       []finalBlock
}

// finalBlock is a block that is not free at the end of the trace.
type finalBlock struct {
	address       uint64
	size          int64 // requested size in bytes
	isFreePending bool  // freed, but another stream may still use it
}

// Reader collects the elements of one snapshot.
type Reader struct {
	rank               *history.Rank
	stacks             *Stacks
	keys               map[string]plain.Value // the key of a dict as a Value, by the key
	actions            map[plain.Value]action // by the action's name as a Value
	traces             [][]rawEvent           // events by device
	segments           []finalSegment
	unknownActionCount int    // number of events whose action is unknown
	elementCount       int64  // number of calls of AddElement
	unreadableKey      string // last key whose value was not a number from 0, or "" (see integer)
}

// NewReader returns a Reader that adds events to rank.
func NewReader(rank *history.Rank, stacks *Stacks) *Reader {
	return &Reader{
		rank: rank, stacks: stacks, keys: map[string]plain.Value{}, actions: map[plain.Value]action{},
	}
}

// HasElements reports whether the snapshot contained any elements.
func (r *Reader) HasElements() bool { return r.elementCount > 0 }

// AddElement adds v, an element of StreamedLists[list]. In the list device_traces, v is an event
// of the device innerList. In the other lists, v is a segment.
func (r *Reader) AddElement(d *plain.Document, list, innerList int, v plain.Value) error {
	r.elementCount++
	if len(r.keys) == 0 {
		r.setKeys(d)
	}

	const deviceTraces = 0 // index in StreamedLists
	var err error
	if list == deviceTraces {
		err = r.addEvent(d, innerList, v)
	} else {
		err = r.addSegment(d, v)
	}

	if err != nil {
		return err
	}

	if r.unreadableKey != "" {
		return malformedSnapshot("%q of an event, segment or block is out of range", r.unreadableKey)
	}

	return nil
}

// setKeys sets r.keys and r.actions to Values of the document.
func (r *Reader) setKeys(d *plain.Document) {
	for _, key := range []string{
		"action", "addr", "size", "stream", "frames", "pool_id", "time_us", "address", "total_size",
		"segment_pool_id", "is_expandable", "blocks", "state", "requested_size", "device", "history",
		"real_size",
	} {
		r.keys[key] = d.StringValue(key)
	}

	for name, a := range actionsByName {
		r.actions[d.StringValue(name)] = a
	}
}

// integer returns the value of a key in the dict v, or 0 if v lacks the key. If the value is
// negative or not an integer, it sets r.unreadableKey, which AddElement checks.
func (r *Reader) integer(d *plain.Document, v plain.Value, key string) int64 {
	value := d.Get(v, r.keys[key])
	if value.IsNone() {
		return 0
	}

	n, ok := value.Int()
	if !ok || n < 0 {
		r.unreadableKey = key
	}

	return n
}

// pool returns the pool ID that is the value of a key in the dict v. It returns false if v lacks
// the key or the value is invalid.
func (r *Reader) pool(d *plain.Document, v plain.Value, key string) (poolID, bool) {
	items := d.Items(d.Get(v, r.keys[key]))
	if len(items) != 2 {
		return unknownPool, false
	}

	first, firstOK := items[0].Int()
	second, secondOK := items[1].Int()
	return poolID{first, second}, firstOK && secondOK
}

const maxDevices = 1024 // limit of len(Reader.traces), in case the file is damaged

// addEvent adds the event v to the trace of a device.
func (r *Reader) addEvent(d *plain.Document, device int, v plain.Value) error {
	if device >= maxDevices {
		return malformedSnapshot("it has more than %d devices", maxDevices)
	}

	for len(r.traces) <= device {
		r.traces = append(r.traces, nil)
	}

	action, isKnown := r.actions[d.Get(v, r.keys["action"])]
	if !isKnown {
		r.unknownActionCount++
		action = actionIgnored
	}

	e := rawEvent{
		number: int64(len(r.traces[device])), action: action,
		address: uint64(r.integer(d, v, "addr")), size: r.integer(d, v, "size"),
		stream: r.integer(d, v, "stream"), time: r.integer(d, v, "time_us"),
		stack: r.stacks.Add(d, d.Get(v, r.keys["frames"])),
	}
	e.pool, _ = r.pool(d, v, "pool_id") // unknownPool in files of old versions
	r.traces[device] = append(r.traces[device], e)
	return nil
}

// addSegment adds the segment v with its blocks.
func (r *Reader) addSegment(d *plain.Document, v plain.Value) error {
	if !d.IsDict(v) || d.Get(v, r.keys["address"]).IsNone() {
		return malformedSnapshot("a segment has no address")
	}

	s := finalSegment{
		device: r.integer(d, v, "device"), address: uint64(r.integer(d, v, "address")),
		bytes: r.integer(d, v, "total_size"), stream: r.integer(d, v, "stream"),
		isExpandable: d.Get(v, r.keys["is_expandable"]).Bool(),
	}
	id, hasID := r.pool(d, v, "segment_pool_id")
	if !hasID {
		id = poolID{} // the default pool
		r.rank.AddNote("segments have no pool IDs: all of them are counted as the default pool")
	}

	s.pool = id
	s.blocks = r.blocksOf(d, v, s.address)
	r.segments = append(r.segments, s)
	return nil
}

// blocksOf returns the blocks of a segment that are not free. begin is the segment's address.
func (r *Reader) blocksOf(d *plain.Document, segment plain.Value, begin uint64) []finalBlock {
	var blocks []finalBlock
	address := begin
	for _, v := range d.Items(d.Get(segment, r.keys["blocks"])) {
		// Old versions do not write addresses. Each block begins where the previous one ends.
		if stated, ok := d.Get(v, r.keys["address"]).Int(); ok {
			address = uint64(stated)
		}

		size := r.integer(d, v, "size")
		state, _ := d.StringOf(d.Get(v, r.keys["state"]))
		if state != "inactive" {
			block := finalBlock{
				address: address, size: size, isFreePending: state != "active_allocated",
			}
			if requested, ok := r.requestedSize(d, v).Int(); ok {
				block.size = requested
			}

			blocks = append(blocks, block)
		}

		address += uint64(size)
	}

	return blocks
}

// requestedSize returns the size that the program requested for a block, or None if it is unknown.
// PyTorch 2.0 writes the size in the block's history.
func (r *Reader) requestedSize(d *plain.Document, block plain.Value) plain.Value {
	size := d.Get(block, r.keys["requested_size"])
	if !size.IsNone() {
		return size
	}

	records := d.Items(d.Get(block, r.keys["history"]))
	if len(records) == 0 {
		return size
	}

	return d.Get(records[0], r.keys["real_size"])
}
