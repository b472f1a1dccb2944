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

// flightVersion is the version of the format that PyTorch 2.9 and later write.
const flightVersion = "2.10"

// flightNames maps symmem's operations to the names that PyTorch's analyzer knows. It lacks
// operations whose sizes can differ between ranks, which the analyzer does not know.
var flightNames = map[string]string{
	"AllReduce": "all_reduce", "AllGather": "_all_gather_base", "Broadcast": "broadcast",
	"ReduceScatter": "_reduce_scatter_base", "Reduce": "reduce", "Gather": "gather",
	"Scatter": "scatter", "AllToAll": "all_to_all", "Barrier": "all_reduce_barrier",
	"AllReduceRMSNorm": "all_reduce", "ReduceScatterRMSNorm": "_reduce_scatter_base",
}

// unknownSizesName is the name of all operations that flightNames lacks. PyTorch's analyzer does
// not compare the sizes of operations with this name.
const unknownSizesName = "coalesced"

// flightTypes maps data types to PyTorch's names.
var flightTypes = map[string]string{
	"int8": "Char", "uint8": "Byte", "int16": "Short", "uint16": "UInt16", "int32": "Int",
	"uint32": "UInt32", "int64": "Long", "uint64": "UInt64", "float16": "Half",
	"bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
}

// WriteFlightRecorder writes a dump in the format of PyTorch's Flight Recorder for each rank to a
// folder, which must not contain other files. It returns the number of written calls and the number
// of omitted messages (Sends and Recvs).
func WriteFlightRecorder(folder string, t *Traces) (calls, messages int, err error) {
	err = writeFiles(t, folder, "trace_rank_", func(w io.Writer, i int, l *trace.Log) error {
		f := flightWriter{traces: t, log: l, clock: t.Clocks[i], callCounts: map[string]uint64{}}
		err := f.write(w)
		calls += f.writtenCalls
		messages += f.omittedMessages
		return err
	})
	return calls, messages, err
}

type flightWriter struct {
	traces                        *Traces
	log                           *trace.Log        // the trace of the rank
	clock                         Clock             // corrects the times
	callCounts                    map[string]uint64 // number of collectives so far, by group
	writtenCalls, omittedMessages int               // numbers of calls and messages so far
}

func (f *flightWriter) write(w io.Writer) error {
	p := newPickler(w)
	p.openDict()
	p.writeTextItem("version", flightVersion)
	p.writeTextItem("comm_lib_version", "symmem")
	p.writeKey("pg_config")
	p.openDict()
	for _, id := range slices.Sorted(maps.Keys(f.traces.groups)) {
		g := f.traces.groups[id]
		if _, isMember := slices.BinarySearch(g.ranks, f.log.Rank); isMember {
			p.writeKey(id)
			p.openDict()
			p.writeTextItem("name", id)
			p.writeTextItem("desc", groupDescription)
			p.writeTextItem("ranks", strings.ReplaceAll(fmt.Sprint(g.ranks), " ", ", "))
			p.closeDict()
		}
	}
	p.closeDict()
	p.writeKey("pg_status")
	p.openDict()
	p.closeDict()
	p.writeKey("entries")
	p.openList()
	for i := range f.log.Records {
		f.writeEntry(p, &f.log.Records[i])
	}
	p.closeList()
	p.closeDict()
	return p.finish()
}

const groupDescription = "symmem" // description of all groups

// elementsPattern matches the number and type of the elements in a call such as "AllReduce of 8
// float32".
var elementsPattern = regexp.MustCompile(` of (\d+) (\w+)`)

// writeEntry writes the entry for a record. It omits records other than collectives, and
// collectives that the traces of other ranks may lack.
func (f *flightWriter) writeEntry(p *pickler, r *trace.Record) {
	if r.Kind != event.KindCollective {
		return
	}
	if isMessage(r) {
		f.omittedMessages++
		return
	}
	g := f.traces.findOrAddGroup(r.Group)
	sequence := f.callCounts[r.Group]
	f.callCounts[r.Group]++
	if !f.traces.areComplete() && !g.hasMessages {
		sequence = r.Number // counted from the group's first event, which the trace may lack
		if sequence < g.firstComplete {
			return
		}
	}
	operation, _, _ := strings.Cut(r.Call, " ")
	operation = strings.TrimSuffix(operation, ",")
	p.beginItem()
	p.openDict()
	p.writeIntegerItem("record_id", int64(f.writtenCalls))
	p.writeIntegerItem("pg_id", 0)
	p.writeKey("process_group")
	p.writeText(r.Group)
	p.writeText(groupDescription)
	p.writeBytes(opTuple2)
	p.writeIntegerItem("collective_seq_id", int64(sequence))
	p.writeIntegerItem("p2p_seq_id", 0)
	p.writeIntegerItem("op_id", int64(sequence))
	p.writeTextItem("profiling_name", "nccl:"+flightNameOf(operation, r.Call))
	created := r.Time.Add(-time.Duration(f.clock.AppliedOffset))
	p.writeIntegerItem("time_created_ns", created.UnixNano())
	f.writeSizes(p, r, operation, len(g.ranks))
	p.writeTextItem("state", "scheduled") // traces do not record when calls complete
	p.writeFalseItem("is_p2p")
	p.writeFalseItem("retired")
	p.writeIntegerItem("timeout_ms", 0)
	stack := frameOf(r.Site, r.Call)
	if stack == (frame{}) {
		stack = frame{name: r.Call, file: "unknown call site"}
	}
	p.writeFrames(stack)
	p.closeDict()
	f.writtenCalls++
}

// flightNameOf returns the name for a call with an operation and a text. If several calls run as
// one collective, the text has a list of them, and the sizes in the dump are those of the first
// call.
func flightNameOf(operation, text string) string {
	name, ok := flightNames[operation]
	hasList := strings.Contains(text, ", first of the list (")
	if !ok || hasList {
		return unknownSizesName
	}
	return name
}

// writeSizes writes the sizes and data types of the buffers of a call in a group of ranks. For a
// call without elements, such as a barrier, the sizes are 0.
func (f *flightWriter) writeSizes(p *pickler, r *trace.Record, operation string, ranks int) {
	var count int64 // count argument of the call
	dataType := ""
	if matches := elementsPattern.FindStringSubmatch(r.Call); matches != nil {
		count, _ = strconv.ParseInt(matches[1], 10, 64) // digits; too many of them give a large count
		dataType = matches[2]
		if torchType := flightTypes[dataType]; torchType != "" {
			dataType = torchType
		}
	}
	bufferCount := func(hasPartOfEachRank bool) int64 {
		if hasPartOfEachRank {
			return count * int64(ranks)
		}
		return count
	}
	inputCount := bufferCount(
		operation == "ReduceScatter" || operation == "ReduceScatterRMSNorm" ||
			operation == "Scatter" || operation == "AllToAll")
	outputCount := bufferCount(
		operation == "AllGather" || operation == "Gather" || operation == "AllToAll")
	for _, buffer := range []struct {
		name  string
		count int64
	}{{"input", inputCount}, {"output", outputCount}} {
		p.writeKey(buffer.name + "_sizes")
		p.openList()
		p.beginItem() // the sizes of one tensor, which has one dimension
		p.openList()
		p.beginItem()
		p.writeInteger(buffer.count)
		p.closeList()
		p.closeList()
		p.writeKey(buffer.name + "_dtypes")
		p.openList()
		p.beginItem()
		p.writeText(dataType)
		p.closeList()
	}
}
