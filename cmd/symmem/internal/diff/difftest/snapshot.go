package difftest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"symmem/internal/alloc"
)

// Run describes how Snapshot executes a program.
type Run struct {
	// Seed determines the addresses of segments.
	Seed uint64
	// Policy chooses between free blocks of the same size. PyTorch up to 2.11 uses alloc.Address.
	Policy alloc.Policy
	// MaxEntries limits the trace to the last entries. 0 means that there is no limit.
	MaxEntries int
	// OmitPoolIDs omits pool IDs from trace entries, as PyTorch did before 2.11.
	OmitPoolIDs bool
	// Line is added to the line number of the innermost stack frame.
	Line int
}

// Snapshot executes a program as PyTorch's allocator would, and returns a memory snapshot. Pool n
// of the program becomes the MemPool with the ID (0, n+1).
func Snapshot(p Program, r Run) Dict {
	e := &execution{Run: r, rng: rand.New(rand.NewPCG(r.Seed, 1)), live: map[int]block{}}
	for i, request := range p {
		for request.Pool >= len(e.pools) {
			core, err := alloc.New(alloc.Config{Policy: r.Policy, Sizing: alloc.Stepped})
			if err != nil {
				panic(err)
			}
			e.pools = append(e.pools, &pool{core: core})
		}
		e.request(i, request)
	}
	return e.snapshot()
}

type pool struct {
	core     *alloc.Core
	segments []segment
}

type segment struct {
	address uint64
	bytes   int64
	stream  int
}

type block struct {
	alloc.Block
	address uint64
	request Request
}

type execution struct {
	Run
	rng    *rand.Rand
	pools  []*pool
	taken  []uint64      // addresses of segments
	live   map[int]block // by tensor
	trace  List
	number int // number of trace entries so far
}

// streamID returns a stream's ID in the snapshot: 0 for the default stream, and a pointer for any
// other.
func (e *execution) streamID(stream int) int64 {
	if stream == 0 {
		return 0
	}
	return int64(e.Seed%97)<<32 + int64(stream)<<8
}

func (e *execution) request(i int, r Request) {
	if r.Free {
		b := e.live[r.Tensor]
		delete(e.live, r.Tensor)
		if _, _, err := e.pools[r.Pool].core.FreeHandle(b.Handle); err != nil {
			panic(err)
		}
		e.add("free_requested", b.address, r.Size, r, i)
		e.add("free_completed", b.address, r.Size, r, i)
		return
	}
	p := e.pools[r.Pool]
	for {
		b, growth, err := p.core.Alloc(r.Size, alloc.Stream(e.streamID(r.Stream)))
		if err != nil {
			panic(err)
		}
		if growth.Bytes == 0 {
			address := p.segments[b.Segment].address + uint64(b.Offset)
			e.live[r.Tensor] = block{b, address, r}
			e.add("alloc", address, r.Size, r, i)
			return
		}
		s := segment{e.freshAddress(), growth.Bytes, r.Stream}
		if _, err := p.core.AddSegment(growth, s.address); err != nil {
			panic(err)
		}
		p.segments = append(p.segments, s)
		e.add("segment_alloc", s.address, s.bytes, r, i)
	}
}

// freshAddress returns an address for a new segment. Addresses are multiples of 256 MiB, so that
// segments do not overlap.
func (e *execution) freshAddress() uint64 {
	for {
		a := 0x7f0000000000 + uint64(e.rng.IntN(1<<11))<<28
		if !slices.Contains(e.taken, a) {
			e.taken = append(e.taken, a)
			return a
		}
	}
}

func (e *execution) add(action string, address uint64, size int64, r Request, i int) {
	e.number++
	entry := Dict{
		{"action", action},
		{"addr", int64(address)},
		{"size", size},
		{"stream", e.streamID(r.Stream)},
		{"time_us", 1_700_000_000_000_000 + int64(e.number)},
		{"compile_context", "N/A"},
		{"user_metadata", ""},
	}
	if !e.OmitPoolIDs {
		entry = append(entry, Pair{"pool_id", Tuple{0, r.Pool + 1}})
	}
	e.trace = append(e.trace, append(entry, Pair{"frames", List{
		Dict{{"name", "make"}, {"filename", "model.py"}, {"line", 10 + i%50 + e.Line}},
		Dict{{"name", "main"}, {"filename", "train.py"}, {"line", 5}},
	}}))
}

func (e *execution) snapshot() Dict {
	var segments List
	for number, p := range e.pools {
		for ordinal, s := range p.segments {
			segments = append(segments, Dict{
				{"device", 0},
				{"address", int64(s.address)},
				{"total_size", s.bytes},
				{"stream", e.streamID(s.stream)},
				{"segment_type", "large"},
				{"segment_pool_id", Tuple{0, number + 1}},
				{"is_expandable", false},
				{"frames", List{}},
				{"blocks", e.blocks(p, int32(ordinal))},
			})
		}
	}
	slices.SortFunc(segments, func(a, b any) int {
		return cmp.Compare(a.(Dict)[1].Value.(int64), b.(Dict)[1].Value.(int64))
	})
	trace := e.trace
	if e.MaxEntries > 0 && len(trace) > e.MaxEntries {
		trace = trace[len(trace)-e.MaxEntries:]
	}
	return Dict{
		{"segments", segments},
		{"device_traces", List{trace}},
		{"allocator_settings", Dict{
			{"PYTORCH_CUDA_ALLOC_CONF", ""},
			{"max_split_size", int64(-1)},
			{"garbage_collection_threshold", 0.0},
			{"expandable_segments", false},
			{"roundup_power2_divisions", Dict{{"1", 0}, {"2", 0}}},
		}},
		{"external_annotations", List{}},
	}
}

// blocks lists the blocks of a segment, both allocated and free.
func (e *execution) blocks(p *pool, ordinal int32) List {
	sizes := map[uint64]int64{}
	for _, b := range e.live {
		sizes[b.address] = b.request.Size
	}
	var all List
	for b := range p.core.Blocks(ordinal) {
		address := p.segments[ordinal].address + uint64(b.Offset)
		state, requested := "inactive", int64(0)
		if b.State == alloc.Live {
			state, requested = "active_allocated", sizes[address]
		}
		all = append(all, Dict{
			{"address", int64(address)},
			{"size", b.Size},
			{"requested_size", requested},
			{"state", state},
			{"frames", List{}},
		})
	}
	return all
}

// Calls returns a Flight Recorder dump of a group that called the given collectives, such as
// "all_reduce". first is the sequence number of the first collective.
func Calls(operations []string, first int) Dict {
	var entries List
	for i, operation := range operations {
		entries = append(entries, Dict{
			{"frames", List{Dict{{"name", "step"}, {"filename", "train.py"}, {"line", 7 + i%3}}}},
			{"record_id", i},
			{"pg_id", 0},
			{"process_group", Tuple{"0", "default_pg"}},
			{"collective_seq_id", first + i},
			{"p2p_seq_id", 0},
			{"op_id", first + i},
			{"profiling_name", "nccl:" + operation},
			{"time_created_ns", int64(1_700_000_000_000_000_000)},
			{"input_sizes", List{List{1024}}},
			{"input_dtypes", List{"Float"}},
			{"output_sizes", List{List{1024}}},
			{"output_dtypes", List{"Float"}},
			{"state", "completed"},
			{"is_p2p", false},
			{"retired", true},
			{"timeout_ms", 600000},
		})
	}
	return Dict{
		{"version", "2.10"},
		{"comm_lib_version", "2.28.9"},
		{"pg_config", Dict{{"0", Dict{{"name", "0"}, {"desc", "default_pg"}, {"ranks", "[0, 1]"}}}}},
		{"pg_status", Dict{}},
		{"entries", entries},
	}
}

// FileName returns a name for a rank's snapshot file. The name contains the rank.
func FileName(rank int) string { return fmt.Sprintf("snapshot_rank%d.pickle", rank) }
