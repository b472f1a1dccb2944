package export

import (
	"cmp"
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

// PyTorch's Flight Recorder writes a dump for each rank: a list of the rank's collectives. An
// analyzer of PyTorch compares the dumps of all ranks. symmem writes dumps in the same format, so
// that the analyzer can compare traces. For example, a call has this text in a trace of rank 1, and
// this entry in the dump:
//
//	AllReduce sum of 1024 float32, path window, ...
//
//	collective_seq_id   7, the sequence number of the call in its group, from 0
//	profiling_name      nccl:all_reduce
//	input_sizes         [[1024]]
//	input_dtypes        ["Float"]
//
// The sequence number of a call must be the same on all ranks. Sends and Recvs have no entries.

// flightVersion is the version of the format that PyTorch 2.9 and later write.
const flightVersion = "2.10"

// WriteFlightRecorder writes a dump for each rank to a folder, which must not contain other files.
// It returns the number of calls in all dumps, and the number of Sends and Recvs that it left out.
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

// flightWriter writes the dump of one rank. A dump is a Python value: a dict (a map) with lists and
// other dicts. A pickler encodes it.
type flightWriter struct {
	traces          *Traces
	log             *trace.Log        // the trace of the rank
	clock           Clock             // how far the rank's clock is ahead
	callCounts      map[string]uint64 // number of collectives so far, by group
	writtenCalls    int               // number of entries so far
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
		f.writeRecord(p, &f.log.Records[i])
	}

	p.closeList()
	p.closeDict()
	return p.finish()
}

const groupDescription = "symmem" // description of all groups

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

// writeRecord writes the entry for a record, if it is of a collective. It leaves out a collective
// that cannot be compared with those of other ranks.
func (f *flightWriter) writeRecord(p *pickler, r *trace.Record) {
	if r.Kind != event.KindCollective {
		return
	}

	if isMessage(r) {
		f.omittedMessages++
		return
	}

	g := f.traces.findOrAddGroup(r.Group)
	sequence, isKnown := f.nextSequence(g, r)
	if !isKnown {
		return
	}

	p.beginListItem()
	f.writeEntry(p, g, r, sequence)
	f.writtenCalls++
}

// nextSequence returns the sequence number of a collective. isKnown is false if other traces may
// lack the collective, or if it has no number that is the same on all ranks.
func (f *flightWriter) nextSequence(g *group, r *trace.Record) (sequence uint64, isKnown bool) {
	count := f.callCounts[r.Group]
	f.callCounts[r.Group]++
	if f.traces.areComplete() {
		return count, true
	}

	if !f.traces.canNumberCalls(g) {
		return 0, false
	}

	// A trace has lost old calls, so its count is too small. But the event's number in the group is
	// the same on all ranks.
	return r.Number, r.Number >= g.firstComplete
}

// canNumberCalls reports whether collectives of a group can have the same sequence numbers on all
// ranks. It returns false if a trace has lost events and the group has Sends or Recvs. These have
// numbers too, so the number of a collective can differ between ranks.
func (t *Traces) canNumberCalls(g *group) bool { return t.areComplete() || !g.hasMessages }

// addFlightNotes adds a note for each group whose calls the dumps lack.
func (t *Traces) addFlightNotes() {
	for _, id := range slices.Sorted(maps.Keys(t.groups)) {
		if !t.canNumberCalls(t.groups[id]) {
			t.Notes = append(t.Notes, fmt.Sprintf("group %s: a Flight Recorder dump has no calls of it, "+
				"because it has Sends or Recvs, and events were lost", id))
		}
	}
}

// writeEntry writes the entry for a collective of group g.
func (f *flightWriter) writeEntry(p *pickler, g *group, r *trace.Record, sequence uint64) {
	operation, _, _ := strings.Cut(r.Call, " ") // such as "AllReduce" or "Barrier,"
	operation = strings.TrimSuffix(operation, ",")
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
	writeBuffers(p, operation, elementsOf(r.Call), len(g.ranks))
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
}

// flightNames maps symmem's operations to names that the analyzer knows. It lacks operations in
// which ranks may pass different sizes, because the analyzer knows none of them.
var flightNames = map[string]string{
	"AllReduce": "all_reduce", "AllGather": "_all_gather_base", "Broadcast": "broadcast",
	"ReduceScatter": "_reduce_scatter_base", "Reduce": "reduce", "Gather": "gather",
	"Scatter": "scatter", "AllToAll": "all_to_all", "Barrier": "all_reduce_barrier",
	"AllReduceRMSNorm": "all_reduce", "ReduceScatterRMSNorm": "_reduce_scatter_base",
}

// uncomparedName is the name of other operations. The analyzer does not compare their sizes.
const uncomparedName = "coalesced"

// flightNameOf returns the name for a call. text is the text of the call in the trace.
//
// If several calls run as one collective, the text is that of the first call, and includes a list
// of all. The entry has only the sizes of the first call, so the analyzer must not compare them.
func flightNameOf(operation, text string) string {
	name, isKnown := flightNames[operation]
	hasList := strings.Contains(text, ", first of the list (")
	if !isKnown || hasList {
		return uncomparedName
	}

	return name
}

// elements describes the elements of a call: 1024 of type "Float", for example.
type elements struct {
	count    int64  // as passed to the call
	dataType string // name in PyTorch
}

// elementsPattern matches the number and the type of elements, as in "AllReduce of 8 float32".
var elementsPattern = regexp.MustCompile(` of (\d+) (\w+)`)

// torchTypes maps symmem's data types to their names in PyTorch.
var torchTypes = map[string]string{
	"int8": "Char", "uint8": "Byte", "int16": "Short", "uint16": "UInt16", "int32": "Int",
	"uint32": "UInt32", "int64": "Long", "uint64": "UInt64", "float16": "Half",
	"bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
}

// elementsOf returns the elements in the text of a call. A call without elements, such as a
// barrier, has 0 elements of type "".
func elementsOf(text string) elements {
	matches := elementsPattern.FindStringSubmatch(text)
	if matches == nil {
		return elements{}
	}

	count, _ := strconv.ParseInt(matches[1], 10, 64) // too many digits give the largest int64
	dataType := matches[2]
	return elements{count: count, dataType: cmp.Or(torchTypes[dataType], dataType)}
}

// Operations whose input or output buffer has a part of the given count for each rank of the group.
var (
	inputHasAllParts = map[string]bool{
		"ReduceScatter": true, "ReduceScatterRMSNorm": true, "Scatter": true, "AllToAll": true,
	}
	outputHasAllParts = map[string]bool{"AllGather": true, "Gather": true, "AllToAll": true}
)

// writeBuffers writes the sizes and data types of a call's input and output. ranks is the number of
// ranks in the group.
func writeBuffers(p *pickler, operation string, e elements, ranks int) {
	inputCount := e.count
	if inputHasAllParts[operation] {
		inputCount = e.count * int64(ranks)
	}

	outputCount := e.count
	if outputHasAllParts[operation] {
		outputCount = e.count * int64(ranks)
	}

	writeTensor(p, "input", inputCount, e.dataType)
	writeTensor(p, "output", outputCount, e.dataType)
}

// writeTensor writes the size and data type of a buffer: [[1024]] and ["Float"], for example. These
// are lists of one tensor, whose list of sizes has one dimension. buffer is "input" or "output".
func writeTensor(p *pickler, buffer string, count int64, dataType string) {
	p.writeKey(buffer + "_sizes")
	p.openList()
	p.beginListItem()
	p.openList()
	p.beginListItem()
	p.writeInteger(count)
	p.closeList()
	p.closeList()
	p.writeKey(buffer + "_dtypes")
	p.openList()
	p.beginListItem()
	p.writeText(dataType)
	p.closeList()
}
