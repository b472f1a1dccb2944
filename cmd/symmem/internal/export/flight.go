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

// flightNames maps symmem's operations to the names that PyTorch's analyzer of dumps knows. The
// analyzer knows no operations whose sizes can differ between ranks, so these are missing.
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
	err = writeFiles(t, folder, "trace_rank_", func(w io.Writer, i int, log *trace.Log) error {
		f := flightWriter{traces: t, log: log, clock: t.Clocks[i], callCounts: map[string]uint64{}}
		err := f.write(w)
		calls += f.writtenCalls
		messages += f.omittedMessages
		return err
	})
	return calls, messages, err
}

// flightWriter writes the dump of one rank.
type flightWriter struct {
	traces          *Traces
	log             *trace.Log        // the trace of the rank
	clock           Clock             // corrects the times
	callCounts      map[string]uint64 // number of collectives so far, by group
	writtenCalls    int               // number of calls so far
	omittedMessages int               // number of Sends and Recvs so far
}

func (f *flightWriter) write(w io.Writer) error {
	p := newPickler(w)
	p.openDict()
	p.writeTextItem("version", flightVersion)
	p.writeTextItem("comm_lib_version", "symmem")
	p.writeKey("pg_config")
	f.writeGroups(p)
	p.writeKey("pg_status")
	p.openDict() // remains empty
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

// writeGroups writes a dict of the groups to which the rank belongs, by ID.
func (f *flightWriter) writeGroups(p *pickler) {
	p.openDict()
	for _, id := range slices.Sorted(maps.Keys(f.traces.groups)) {
		g := f.traces.groups[id]
		if !slices.Contains(g.ranks, f.log.Rank) {
			continue
		}

		p.writeKey(id)
		p.openDict()
		p.writeTextItem("name", id)
		p.writeTextItem("desc", groupDescription)
		ranks := fmt.Sprint(g.ranks) // such as "[0 1]"; Python's form is "[0, 1]"
		p.writeTextItem("ranks", strings.ReplaceAll(ranks, " ", ", "))
		p.closeDict()
	}

	p.closeDict()
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
	// The sequence number of a call must be the same on all ranks.
	sequence := f.callCounts[r.Group]
	f.callCounts[r.Group]++
	if !f.traces.areComplete() && !g.hasMessages {
		// The count lacks the calls that the trace has lost, but the number in the trace does not.
		sequence = r.Number
		if sequence < g.firstComplete {
			return
		}
	}

	operation, _, _ := strings.Cut(r.Call, " ") // such as "AllReduce" or "Barrier,"
	operation = strings.TrimSuffix(operation, ",")
	p.beginItem()
	p.openDict()
	p.writeIntegerItem("record_id", int64(f.writtenCalls))
	p.writeIntegerItem("pg_id", 0)
	p.writeKey("process_group")
	p.writeText(r.Group)
	p.writeText(groupDescription)
	p.writeBytes(opTuple2) // makes a tuple of the two texts
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
	callSite := frameOf(r.Site, r.Call)
	if r.Site == "" {
		callSite = frame{name: r.Call, file: "unknown call site"}
	}

	p.writeFrames(callSite)
	p.closeDict()
	f.writtenCalls++
}

// flightNameOf returns the name for a call. text is the description of the call in the trace. If
// several calls run as one collective, the text contains a list of them. The sizes in the dump are
// then those of the first call only, so the analyzer must not compare them.
func flightNameOf(operation, text string) string {
	name, isKnown := flightNames[operation]
	hasList := strings.Contains(text, ", first of the list (")
	if !isKnown || hasList {
		return unknownSizesName
	}

	return name
}

// Operations whose input or output buffer has a part for each rank of the group.
var (
	inputHasAllParts = map[string]bool{
		"ReduceScatter": true, "ReduceScatterRMSNorm": true, "Scatter": true, "AllToAll": true,
	}
	outputHasAllParts = map[string]bool{"AllGather": true, "Gather": true, "AllToAll": true}
)

// writeSizes writes the sizes and data types of the buffers of a call. ranks is the number of ranks
// in the group. For a call without elements, such as a barrier, the sizes are 0.
func (f *flightWriter) writeSizes(p *pickler, r *trace.Record, operation string, ranks int) {
	var count int64 // count argument of the call
	dataType := ""
	if matches := elementsPattern.FindStringSubmatch(r.Call); matches != nil {
		count, _ = strconv.ParseInt(matches[1], 10, 64) // too many digits give the largest int64
		dataType = matches[2]
		if torchType := flightTypes[dataType]; torchType != "" {
			dataType = torchType
		}
	}

	inputCount := count
	if inputHasAllParts[operation] {
		inputCount = count * int64(ranks)
	}

	outputCount := count
	if outputHasAllParts[operation] {
		outputCount = count * int64(ranks)
	}

	writeTensor(p, "input", inputCount, dataType)
	writeTensor(p, "output", outputCount, dataType)
}

// writeTensor writes the size and data type of a buffer, as lists for one tensor of one dimension.
// buffer is "input" or "output".
func writeTensor(p *pickler, buffer string, count int64, dataType string) {
	p.writeKey(buffer + "_sizes")
	p.openList()
	p.beginItem() // the sizes of the tensor
	p.openList()
	p.beginItem()
	p.writeInteger(count)
	p.closeList()
	p.closeList()
	p.writeKey(buffer + "_dtypes")
	p.openList()
	p.beginItem()
	p.writeText(dataType)
	p.closeList()
}
