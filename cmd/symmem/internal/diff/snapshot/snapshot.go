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

var unknownPool = poolID{-1, -1}

// rawEvent is an event of the trace as in the file.
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
	actionAlloc action = iota + 1
	actionFreeRequested
	actionFreeCompleted
	actionSegmentAlloc
	actionSegmentFree
	actionSegmentMap   // maps memory in an expandable segment
	actionSegmentUnmap // unmaps memory in an expandable segment
	actionIgnored      // an event that changes no memory (snapshot, oom), or an unknown one
)

// actionsByName maps PyTorch's names. Old versions write "free" instead of "free_completed".
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
	size          int64 // requested
	isFreePending bool  // freed, but another stream may still use it
}

// Reader collects the elements of one snapshot.
type Reader struct {
	rank               *history.Rank
	stacks             *Stacks
	keys               map[string]plain.Value // Values of the keys in the document
	actions            map[plain.Value]action // by the Value of the action's name
	traces             [][]rawEvent           // by device
	segments           []finalSegment
	unknownActionCount int    // number of events whose action is unknown
	elementCount       int64  // number of calls of AddElement
	unreadableKey      string // key of a value that is negative or no integer; empty if none
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
	if err == nil && r.unreadableKey != "" {
		return malformedSnapshot("%q of an event, segment or block is out of range", r.unreadableKey)
	}
	return err
}

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

// integer returns v's value for a key, or 0 if v lacks it. It sets r.unreadableKey if the value is
// negative or no integer.
func (r *Reader) integer(d *plain.Document, v plain.Value, key string) int64 {
	value := d.Get(v, r.keys[key])
	n, ok := value.Int()
	if !ok && !value.IsNone() || n < 0 {
		r.unreadableKey = key
	}
	return n
}

// pool returns v's pool for a key, or false if v lacks the key or its value is invalid.
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

func (r *Reader) addEvent(d *plain.Document, device int, v plain.Value) error {
	if device >= maxDevices {
		return malformedSnapshot("it has more than %d devices", maxDevices)
	}
	for len(r.traces) <= device {
		r.traces = append(r.traces, nil)
	}
	a, ok := r.actions[d.Get(v, r.keys["action"])]
	if !ok {
		r.unknownActionCount++
		a = actionIgnored
	}
	e := rawEvent{
		number: int64(len(r.traces[device])), action: a,
		address: uint64(r.integer(d, v, "addr")), size: r.integer(d, v, "size"),
		stream: r.integer(d, v, "stream"), time: r.integer(d, v, "time_us"),
		stack: r.stacks.Add(d, d.Get(v, r.keys["frames"])),
	}
	e.pool, _ = r.pool(d, v, "pool_id") // unknownPool in old versions
	r.traces[device] = append(r.traces[device], e)
	return nil
}

func (r *Reader) addSegment(d *plain.Document, v plain.Value) error {
	if !d.IsDict(v) || d.Get(v, r.keys["address"]).IsNone() {
		return malformedSnapshot("a segment has no address")
	}
	s := finalSegment{
		device: r.integer(d, v, "device"), address: uint64(r.integer(d, v, "address")),
		bytes: r.integer(d, v, "total_size"), stream: r.integer(d, v, "stream"),
		isExpandable: d.Get(v, r.keys["is_expandable"]).Bool(),
	}
	var ok bool
	if s.pool, ok = r.pool(d, v, "segment_pool_id"); !ok {
		s.pool = poolID{}
		r.rank.AddNote("segments have no pool IDs: all of them are counted as the default pool")
	}
	address := s.address // of the next block; old versions do not write it
	for _, b := range d.Items(d.Get(v, r.keys["blocks"])) {
		if n, ok := d.Get(b, r.keys["address"]).Int(); ok {
			address = uint64(n)
		}
		size := r.integer(d, b, "size")
		state, _ := d.StringOf(d.Get(b, r.keys["state"]))
		if state != "inactive" {
			block := finalBlock{
				address: address, size: size, isFreePending: state != "active_allocated",
			}
			if requested, ok := r.requestedSize(d, b).Int(); ok {
				block.size = requested
			}
			s.blocks = append(s.blocks, block)
		}
		address += uint64(size)
	}
	r.segments = append(r.segments, s)
	return nil
}

// requestedSize returns the size that the program requested for a block, or None if it is unknown.
// PyTorch 2.0 writes the size in the block's history.
func (r *Reader) requestedSize(d *plain.Document, block plain.Value) plain.Value {
	if v := d.Get(block, r.keys["requested_size"]); !v.IsNone() {
		return v
	}
	if history := d.Items(d.Get(block, r.keys["history"])); len(history) > 0 {
		return d.Get(history[0], r.keys["real_size"])
	}
	return 0
}
