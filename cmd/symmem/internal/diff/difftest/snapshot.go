package difftest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"symmem/internal/alloc"
)

// RunOptions describes how Snapshot executes a program.
type RunOptions struct {
	// Seed determines the addresses of segments.
	Seed uint64
	// Policy chooses between free blocks of the same size. PyTorch up to 2.11 uses
	// alloc.AddressOrder.
	Policy alloc.Policy
	// MaxTraceEntries limits the trace to the last entries, unless it is 0.
	MaxTraceEntries int
	// OmitPoolIDs omits pool IDs from trace entries, as PyTorch did before 2.11.
	OmitPoolIDs bool
	// OldFormat writes the keys that PyTorch 2.0 wrote: no pool IDs, times, settings and addresses
	// of blocks, and a history of blocks instead of their requested sizes. The source is
	// THCPModule_memorySnapshot in torch/csrc/cuda/Module.cpp of PyTorch 2.0.
	OldFormat bool
	// LineOffset is added to the line number of the innermost stack frame.
	LineOffset int
}

// Snapshot executes a program as PyTorch's allocator would, and returns a memory snapshot. Pool n
// of the program is the MemPool (0, n+1).
func Snapshot(p Program, r RunOptions) PyDict {
	e := &execution{RunOptions: r, rng: rand.New(rand.NewPCG(r.Seed, 1)), liveBlocks: map[int]block{}}
	for i, request := range p {
		for request.Pool >= len(e.pools) {
			allocator, err := alloc.New(alloc.Config{Policy: r.Policy, Sizing: alloc.Stepped})
			if err != nil {
				panic(err)
			}

			e.pools = append(e.pools, &pool{allocator: allocator})
		}

		e.execute(i, request)
	}

	return e.snapshot()
}

type pool struct {
	allocator *alloc.Core
	segments  []segment
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
	RunOptions
	rng              *rand.Rand
	pools            []*pool
	segmentAddresses []uint64
	liveBlocks       map[int]block // by tensor
	trace            PyList
	entryCount       int // number of trace entries so far
}

// streamID returns the ID of a stream in the snapshot: 0 for the default stream, or a pointer.
func (e *execution) streamID(stream int) int64 {
	if stream == 0 {
		return 0
	}

	return int64(e.Seed%97)<<32 + int64(stream)<<8
}

func (e *execution) execute(i int, r Request) {
	if r.IsFree {
		b := e.liveBlocks[r.Tensor]
		delete(e.liveBlocks, r.Tensor)
		if _, _, err := e.pools[r.Pool].allocator.FreeHandle(b.Handle); err != nil {
			panic(err)
		}

		e.addEntry("free_requested", b.address, r.Size, r, i)
		e.addEntry("free_completed", b.address, r.Size, r, i)
		return
	}

	p := e.pools[r.Pool]
	for {
		b, growth, err := p.allocator.Alloc(r.Size, alloc.Stream(e.streamID(r.Stream)))
		if err != nil {
			panic(err)
		}

		if growth.Bytes == 0 {
			address := p.segments[b.Segment].address + uint64(b.Offset)
			e.liveBlocks[r.Tensor] = block{b, address, r}
			e.addEntry("alloc", address, r.Size, r, i)
			return
		}

		s := segment{e.newSegmentAddress(), growth.Bytes, r.Stream}
		if _, err := p.allocator.AddSegment(growth, s.address); err != nil {
			panic(err)
		}

		p.segments = append(p.segments, s)
		e.addEntry("segment_alloc", s.address, s.bytes, r, i)
	}
}

// newSegmentAddress returns a random multiple of 256 MiB, so that segments do not overlap.
func (e *execution) newSegmentAddress() uint64 {
	for {
		a := 0x7f0000000000 + uint64(e.rng.IntN(1<<11))<<28
		if !slices.Contains(e.segmentAddresses, a) {
			e.segmentAddresses = append(e.segmentAddresses, a)
			return a
		}
	}
}

func (e *execution) addEntry(action string, address uint64, size int64, r Request, i int) {
	e.entryCount++
	entry := PyDict{
		{"action", action},
		{"addr", int64(address)},
		{"size", size},
		{"stream", e.streamID(r.Stream)},
	}
	if !e.OldFormat {
		entry = append(entry, PyDict{
			{"time_us", 1_700_000_000_000_000 + int64(e.entryCount)},
			{"compile_context", "N/A"},
			{"user_metadata", ""},
		}...)
	}

	if !e.OmitPoolIDs && !e.OldFormat {
		entry = append(entry, Pair{"pool_id", PyTuple{0, r.Pool + 1}})
	}

	e.trace = append(e.trace, append(entry, Pair{"frames", PyList{
		PyDict{{"name", "make"}, {"filename", "model.py"}, {"line", 10 + i%50 + e.LineOffset}},
		PyDict{{"name", "main"}, {"filename", "train.py"}, {"line", 5}},
	}}))
}

func (e *execution) snapshot() PyDict {
	var segments PyList
	for number, p := range e.pools {
		for ordinal, s := range p.segments {
			described := PyDict{
				{"device", 0},
				{"address", int64(s.address)},
				{"total_size", s.bytes},
				{"stream", e.streamID(s.stream)},
				{"segment_type", "large"},
				{"blocks", e.blocks(p, int32(ordinal))},
			}
			if !e.OldFormat {
				described = append(described, PyDict{
					{"segment_pool_id", PyTuple{0, number + 1}},
					{"is_expandable", false},
					{"frames", PyList{}},
				}...)
			}

			segments = append(segments, described)
		}
	}

	slices.SortFunc(segments, func(a, b any) int {
		return cmp.Compare(a.(PyDict)[1].Value.(int64), b.(PyDict)[1].Value.(int64))
	})
	trace := e.trace
	if e.MaxTraceEntries > 0 && len(trace) > e.MaxTraceEntries {
		trace = trace[len(trace)-e.MaxTraceEntries:]
	}

	if e.OldFormat {
		return PyDict{{"segments", segments}, {"device_traces", PyList{trace}}}
	}

	return PyDict{
		{"segments", segments},
		{"device_traces", PyList{trace}},
		{"allocator_settings", PyDict{
			{"PYTORCH_CUDA_ALLOC_CONF", ""},
			{"max_split_size", int64(-1)},
			{"garbage_collection_threshold", 0.0},
			{"expandable_segments", false},
			{"roundup_power2_divisions", PyDict{{"1", 0}, {"2", 0}}},
		}},
		{"external_annotations", PyList{}},
	}
}

// blocks lists the blocks of a segment, both allocated and free.
func (e *execution) blocks(p *pool, ordinal int32) PyList {
	sizes := map[uint64]int64{}
	for _, b := range e.liveBlocks {
		sizes[b.address] = b.request.Size
	}

	var all PyList
	for b := range p.allocator.Blocks(ordinal) {
		address := p.segments[ordinal].address + uint64(b.Offset)
		state, requested := "inactive", int64(0)
		if b.State == alloc.Live {
			state, requested = "active_allocated", sizes[address]
		}

		if e.OldFormat {
			described := PyDict{{"size", b.Size}, {"state", state}}
			if requested > 0 {
				described = append(described, Pair{"history", PyList{
					PyDict{{"addr", int64(address)}, {"real_size", requested}},
				}})
			}

			all = append(all, described)
			continue
		}

		all = append(all, PyDict{
			{"address", int64(address)},
			{"size", b.Size},
			{"requested_size", requested},
			{"state", state},
			{"frames", PyList{}},
		})
	}

	return all
}

// FlightDump returns a Flight Recorder dump of a group that called the given collectives, such as
// "all_reduce". first is the sequence number of the first collective.
func FlightDump(operations []string, first int) PyDict {
	var entries PyList
	for i, operation := range operations {
		entries = append(entries, PyDict{
			{"frames", PyList{PyDict{{"name", "step"}, {"filename", "train.py"}, {"line", 7 + i%3}}}},
			{"record_id", i},
			{"pg_id", 0},
			{"process_group", PyTuple{"0", "default_pg"}},
			{"collective_seq_id", first + i},
			{"p2p_seq_id", 0},
			{"op_id", first + i},
			{"profiling_name", "nccl:" + operation},
			{"time_created_ns", int64(1_700_000_000_000_000_000)},
			{"input_sizes", PyList{PyList{1024}}},
			{"input_dtypes", PyList{"Float"}},
			{"output_sizes", PyList{PyList{1024}}},
			{"output_dtypes", PyList{"Float"}},
			{"state", "completed"},
			{"is_p2p", false},
			{"retired", true},
			{"timeout_ms", 600000},
		})
	}

	return PyDict{
		{"version", "2.10"},
		{"comm_lib_version", "2.28.9"},
		{"pg_config", PyDict{{"0", PyDict{{"name", "0"}, {"desc", "default_pg"}, {"ranks", "[0, 1]"}}}}},
		{"pg_status", PyDict{}},
		{"entries", entries},
	}
}

// FileName returns a name for a rank's snapshot file. The name contains the rank.
func FileName(rank int) string { return fmt.Sprintf("snapshot_rank%d.pickle", rank) }
