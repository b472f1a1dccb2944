package export

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/event"
	"symmem/trace"
)

// flightVersion is the version of the format, which PyTorch 2.9 and later write.
const flightVersion = "2.10"

// flightNames maps operations to the names that PyTorch's analyzer knows. Operations whose sizes
// may differ between ranks are exported as otherOperation.
var flightNames = map[string]string{
	"AllReduce": "all_reduce", "AllGather": "_all_gather_base", "Broadcast": "broadcast",
	"ReduceScatter": "_reduce_scatter_base", "Reduce": "reduce", "Gather": "gather",
	"Scatter": "scatter", "AllToAll": "all_to_all", "Barrier": "all_reduce_barrier",
	"AllReduceRMSNorm": "all_reduce",
}

// otherOperation is the name of an operation whose sizes PyTorch's analyzer does not compare.
const otherOperation = "coalesced"

// flightTypes maps data types to the names that PyTorch uses.
var flightTypes = map[string]string{
	"int8": "Char", "uint8": "Byte", "int16": "Short", "uint16": "UInt16", "int32": "Int",
	"uint32": "UInt32", "int64": "Long", "uint64": "UInt64", "float16": "Half",
	"bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
}

// WriteFlightRecorder writes a dump in the format of PyTorch's Flight Recorder for each rank to a
// folder. The folder must not contain other files, because the analyzer reads all of them.
// WriteFlightRecorder returns the number of written calls and the number of omitted Sends and
// Recvs.
//
// Traces do not record when calls complete, so the state of every call is "scheduled".
func WriteFlightRecorder(folder string, t *Traces) (calls, messages int, err error) {
	err = writeFiles(t, folder, "trace_rank_", func(w io.Writer, i int, l *trace.Log) error {
		f := flight{traces: t, log: l, clock: t.Clocks[i], counts: map[string]uint64{}}
		err := f.write(w)
		calls, messages = calls+f.calls, messages+f.messages
		return err
	})
	return calls, messages, err
}

type flight struct {
	traces          *Traces
	log             *trace.Log
	clock           Clock
	counts          map[string]uint64 // number of calls so far, by group
	calls, messages int
}

func (f *flight) write(w io.Writer) error {
	p := newPickler(w)
	p.openDict()
	p.textItem("version", flightVersion)
	p.textItem("comm_lib_version", "symmem")
	p.key("pg_config")
	p.openDict()
	for _, id := range slices.Sorted(maps.Keys(f.traces.groups)) {
		g := f.traces.groups[id]
		if _, member := slices.BinarySearch(g.ranks, f.log.Rank); member {
			p.key(id)
			p.openDict()
			p.textItem("name", id)
			p.textItem("desc", groupDescription)
			p.textItem("ranks", strings.ReplaceAll(fmt.Sprint(g.ranks), " ", ", "))
			p.closeDict()
		}
	}
	p.closeDict()
	p.key("pg_status")
	p.openDict()
	p.closeDict()
	p.key("entries")
	p.openList()
	for i := range f.log.Records {
		f.entry(p, &f.log.Records[i])
	}
	p.closeList()
	p.closeDict()
	return p.finish()
}

const groupDescription = "symmem"

// elements matches the number and type of the elements in the text of a call.
var elements = regexp.MustCompile(` of (\d+) (\w+)`)

// entry writes r if it is a collective.
func (f *flight) entry(p *pickler, r *trace.Record) {
	if r.Kind != event.KindCollective {
		return
	}
	if isMessage(r) {
		f.messages++
		return
	}
	g := f.traces.group(r.Group)
	sequence := f.counts[r.Group]
	f.counts[r.Group]++
	if !f.traces.complete() && !g.messages {
		sequence = r.Number // counts from the group's first event, even if the trace begins later
		if sequence < g.first {
			return
		}
	}
	operation, _, _ := strings.Cut(r.Call, " ")
	operation = strings.TrimSuffix(operation, ",")
	p.item()
	p.openDict()
	p.integerItem("record_id", int64(f.calls))
	p.integerItem("pg_id", 0)
	p.key("process_group")
	p.text(r.Group)
	p.text(groupDescription)
	p.code(0x86)
	p.integerItem("collective_seq_id", int64(sequence))
	p.integerItem("p2p_seq_id", 0)
	p.integerItem("op_id", int64(sequence))
	p.textItem("profiling_name", "nccl:"+flightName(operation, r.Call))
	created := r.Time.Add(-time.Duration(f.clock.Offset))
	p.integerItem("time_created_ns", created.UnixNano())
	f.sizes(p, r, operation, len(g.ranks))
	p.textItem("state", "scheduled")
	p.falseItem("is_p2p")
	p.falseItem("retired")
	p.integerItem("timeout_ms", 0)
	stack := site(r.Site, r.Call)
	if stack == (frame{}) {
		stack = frame{name: r.Call, file: "unknown call site"}
	}
	p.frames(stack)
	p.closeDict()
	f.calls++
}

func flightName(operation, text string) string {
	name, ok := flightNames[operation]
	if !ok || strings.Contains(text, ", first of the list (") {
		return otherOperation
	}
	return name
}

// sizes writes the types and sizes of the buffers of a call.
func (f *flight) sizes(p *pickler, r *trace.Record, operation string, ranks int) {
	var count int64
	name := ""
	if m := elements.FindStringSubmatch(r.Call); m != nil {
		count, _ = strconv.ParseInt(m[1], 10, 64)
		name = m[2]
		if torch := flightTypes[name]; torch != "" {
			name = torch
		}
	}
	size := func(forEachRank bool) int64 {
		if forEachRank {
			return count * int64(ranks)
		}
		return count
	}
	input := size(operation == "ReduceScatter" || operation == "Scatter" || operation == "AllToAll")
	output := size(operation == "AllGather" || operation == "Gather" || operation == "AllToAll")
	for _, buffer := range []struct {
		name  string
		count int64
	}{{"input", input}, {"output", output}} {
		p.key(buffer.name + "_sizes")
		p.openList()
		p.item()
		p.openList()
		p.item()
		p.integer(buffer.count)
		p.closeList()
		p.closeList()
		p.key(buffer.name + "_dtypes")
		p.openList()
		p.item()
		p.text(name)
		p.closeList()
	}
}
