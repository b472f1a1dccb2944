// Package flight reads dumps of PyTorch's Flight Recorder, which list the collectives that a rank
// called in each of its groups. It ignores the version in a dump and looks at the keys that are
// present.
package flight

import (
	"fmt"
	"strconv"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
	"symmem/cmd/symmem/internal/diff/snapshot"
)

// StreamedLists selects the lists whose elements plain.Decode passes to Reader.AddEntry.
var StreamedLists = []plain.StreamedList{{Key: "entries", Levels: 1}}

// Reader collects the entries of one dump.
type Reader struct {
	rank         *history.Rank
	stacks       *snapshot.Stacks
	keyValues    map[string]plain.Value
	textIndexes  map[string]int32 // index in rank.Texts
	groups       map[string]*history.Sequence
	messageCount int               // number of sends and receives
	lastStates   map[string]string // state of the last call, by group
	entryCount   int64
	// firstRecordID is the record_id of the first entry: how many were dropped before it.
	firstRecordID int64
}

// NewReader returns a Reader that adds calls to rank.
func NewReader(rank *history.Rank, stacks *snapshot.Stacks) *Reader {
	return &Reader{
		rank: rank, stacks: stacks, keyValues: map[string]plain.Value{}, textIndexes: map[string]int32{},
		groups: map[string]*history.Sequence{}, lastStates: map[string]string{},
	}
}

// HasEntries reports whether the dump contained any entries.
func (r *Reader) HasEntries() bool { return r.entryCount > 0 }

// AddEntry adds an entry of the dump to the rank's history.
func (r *Reader) AddEntry(d *plain.Document, v plain.Value) error {
	if !d.IsDict(v) {
		return fmt.Errorf("%w: an entry is not a dict", plain.ErrFormat)
	}
	number := r.entryCount
	if number == 0 {
		r.firstRecordID, _ = d.Get(v, r.keyValue(d, "record_id")).Int()
	}
	r.entryCount++
	if d.Get(v, r.keyValue(d, "is_p2p")).Bool() {
		r.messageCount++
		return nil
	}
	group := r.group(d, v)
	callNumber, _ := d.Get(v, r.keyValue(d, "collective_seq_id")).Int()
	text := r.describe(d, v)
	textIndex, ok := r.textIndexes[text]
	if !ok {
		textIndex = int32(len(r.rank.Texts))
		r.textIndexes[text] = textIndex
		r.rank.Texts = append(r.rank.Texts, text)
	}
	createdNS, _ := d.Get(v, r.keyValue(d, "time_created_ns")).RoundedInt()
	created := createdNS / 1000 // in microseconds
	group.Events = append(group.Events, history.Event{
		Number: number, UnixMicro: created, Segment: -1, Block: textIndex, Action: history.Call,
		Size:  callNumber, // compared between ranks
		Stack: r.stacks.Add(d, d.Get(v, r.keyValue(d, "frames"))),
	})
	r.lastStates[group.ID], _ = d.StringOf(d.Get(v, r.keyValue(d, "state")))
	r.addPending(group, text, created)
	return nil
}

const maxPendingCalls = 1000

// addPending adds a call, the last of its group so far, to the pending calls unless it has
// completed.
func (r *Reader) addPending(group *history.Sequence, text string, created int64) {
	state := r.lastStates[group.ID]
	if state == "" || state == "completed" || len(r.rank.PendingCalls) >= maxPendingCalls {
		return
	}
	r.rank.PendingCalls = append(r.rank.PendingCalls, history.PendingCall{
		Group: group.ID, Text: text, State: state, UnixMicro: created,
	})
}

func (r *Reader) keyValue(d *plain.Document, name string) plain.Value {
	v, ok := r.keyValues[name]
	if !ok {
		v = d.StringValue(name)
		r.keyValues[name] = v
	}
	return v
}

func (r *Reader) group(d *plain.Document, v plain.Value) *history.Sequence {
	var words []string
	for _, item := range d.Items(d.Get(v, r.keyValue(d, "process_group"))) {
		if text, ok := d.StringOf(item); ok && text != "" {
			words = append(words, text)
		}
	}
	if len(words) == 0 {
		id, _ := d.Get(v, r.keyValue(d, "pg_id")).Int()
		words = []string{fmt.Sprint(id)}
	}
	id := groupID(words)
	g := r.groups[id]
	if g == nil {
		g = &history.Sequence{
			Class: history.Calls, ID: id, IsPartial: true, NoPlacesReason: "calls have no places",
		}
		r.groups[id] = g
		r.rank.Sequences = append(r.rank.Sequences, g)
	}
	return g
}

func groupID(words []string) string { return history.MakePrintable(strings.Join(words, " ")) }

// maxRank limits the numbers of ranks, so that a damaged file cannot exhaust memory.
const maxRank = 1<<20 - 1

// addMembers adds the ranks of a group in pg_config, such as "[0, 1]".
func (r *Reader) addMembers(d *plain.Document, config plain.Value) {
	var words []string
	for _, key := range []string{"name", "desc"} {
		if word, ok := d.StringOf(d.Get(config, r.keyValue(d, key))); ok && word != "" {
			words = append(words, word)
		}
	}
	text, _ := d.StringOf(d.Get(config, r.keyValue(d, "ranks")))
	var ranks []int
	for number := range strings.SplitSeq(strings.Trim(text, "[] "), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 0 || n > maxRank {
			return
		}
		ranks = append(ranks, n)
	}
	if r.rank.Members == nil {
		r.rank.Members = map[string][]int{}
	}
	r.rank.Members[groupID(words)] = ranks
}

// unevenOperations lists the operations whose sizes can differ between ranks: prefixes of their
// names and the suffix "_v".
var unevenOperations = []string{"gather", "scatter", "all_to_all", "_v"}

// describe returns what must be the same on all ranks about a call: the name of the operation, its
// data types and, unless they can differ, its sizes.
func (r *Reader) describe(d *plain.Document, v plain.Value) string {
	name, _ := d.StringOf(d.Get(v, r.keyValue(d, "profiling_name")))
	_, operation, hasPrefix := strings.Cut(name, ":")
	if !hasPrefix {
		operation = name
	}
	var b strings.Builder
	b.WriteString(operation)
	for _, key := range []string{"input_dtypes", "output_dtypes", "input_sizes", "output_sizes"} {
		value := d.Get(v, r.keyValue(d, key))
		if value.IsNone() || strings.HasSuffix(key, "sizes") && canSizesDiffer(operation) {
			continue
		}
		b.WriteString(" " + strings.ReplaceAll(key, "_", " ") + " ")
		appendValue(&b, d, value, 0)
	}
	return b.String()
}

func canSizesDiffer(operation string) bool {
	for _, word := range unevenOperations {
		if operation == word || strings.HasSuffix(operation, word) && word == "_v" ||
			strings.HasPrefix(operation, word) {
			return true
		}
	}
	return false
}

// maxTextBytes limits the length of a description. Without a limit, a small pickle that refers to
// the same list many times could produce a huge text.
const maxTextBytes = 1 << 20

// appendValue formats nested lists of numbers and strings. It stops after about maxTextBytes.
func appendValue(b *strings.Builder, d *plain.Document, v plain.Value, depth int) {
	if text, ok := d.StringOf(v); ok {
		b.WriteString(text)
		return
	}
	if n, ok := v.Int(); ok {
		fmt.Fprint(b, n)
		return
	}
	if !d.IsList(v) || depth > 3 {
		b.WriteByte('?')
		return
	}
	b.WriteByte('[')
	for i, item := range d.Items(v) {
		if b.Len() > maxTextBytes {
			b.WriteString(" ...")
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		appendValue(b, d, item, depth+1)
	}
	b.WriteByte(']')
}

// Finish sets the rank's format and members of groups, and adds notes about the dump.
func (r *Reader) Finish(d *plain.Document, top plain.Value) {
	r.rank.Format = "Flight Recorder dump"
	r.rank.IsPartial = r.firstRecordID > 0
	if r.rank.IsPartial {
		r.rank.AddNote("the beginning is missing: %d earlier entries are not in the file",
			r.firstRecordID)
	}
	groups := d.Items(d.Get(top, d.StringValue("pg_config")))
	for i := 1; i < len(groups); i += 2 {
		r.addMembers(d, groups[i])
	}
	if r.messageCount > 0 {
		r.rank.AddNote("%d sends and receives are left out: they need not agree between ranks",
			r.messageCount)
	}
	for _, g := range r.rank.Sequences {
		if state := r.lastStates[g.ID]; state != "" && state != "completed" {
			r.rank.AddNote("the last call of group %s is %s, not completed", g.ID,
				history.MakePrintable(state))
		}
	}
}
